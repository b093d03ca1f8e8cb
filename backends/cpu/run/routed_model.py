"""An opened model, and the way that each of its requests takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.base import Placement
from sift_onnx.backends.cpu.lower.placements import KERNELS
from sift_onnx.backends.cpu.run.cache_rooms import CacheStep, can_have_rooms
from sift_onnx.backends.cpu.run.input_checks import InputCheck
from sift_onnx.backends.cpu.run.opening import OpenedModel
from sift_onnx.backends.cpu.run.parts import PartProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.cpu.run.shape_classes import ShapeClass, shape_class
from sift_onnx.backends.cpu.run.trials import Route, Verdict, placed
from sift_onnx.backends.lowering.equal_sizes import NOTHING_EQUAL
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.errors import BackendError

__all__ = ["RoutedModel"]

Array = npt.NDArray[Any]
_NOTHING: Mapping[str, Array] = {}
# Requests whose names, shapes and types have been checked, and are not looked at again: of as many inputs at most.
# Those with more are decoders' steps, whose caches have another length each time.
_KNOWN, _FEW = 64, 8


class RoutedModel:
    """Runs requests in the kernels, or in onnxruntime where trials have shown that it is faster; thread-safe.

    Where the plan takes sizes of inputs for equal, requests in which they differ run in a plan that does not.

    Attributes:
        opened: what runs.
    """

    def __init__(self, opened: OpenedModel) -> None:
        """Nothing has run yet."""
        self.opened = opened
        self._latest = Route(opened.parts)
        self._check = InputCheck(opened.inputs, opened.held.values())
        self._known: dict[tuple[Any, ...], Route] = {}
        self._whole: dict[tuple[Any, ...], tuple[Route, OnnxRuntimeProgram]] = {}
        self._steps: dict[ShapeClass, Route] = {}
        self._other: RoutedModel | None = None

    def run_whole(self, feeds: Mapping[str, Array]) -> list[Array] | None:
        """The outputs in the model's order, of requests like one that onnxruntime has run as a whole; else None.

        A model that onnxruntime runs takes microseconds here at times: what is known of a request is looked up once.

        Args:
            feeds: that need not fit the model.
        """
        if not self._whole or not isinstance(feeds, dict):
            return None
        request: tuple[Any, ...] = ()
        for name, array in feeds.items():
            if not isinstance(array, np.ndarray):
                return None
            request += (name, array.shape, array.dtype)
        known = self._whole.get(request)
        if known is None:
            return None
        self._latest, session = known
        return session.run_in_order(feeds)

    def run(self, feeds: Mapping[str, Array], into: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """See :meth:`CpuProgram.run`."""
        request: tuple[Any, ...] = ()
        is_kept = len(feeds) <= _FEW
        if is_kept:
            for name, array in feeds.items():
                request += (name, array.shape, array.dtype)
        route = self._known.get(request)
        if route is None:
            route, outputs = self.route(feeds, into or {})
            if is_kept:
                if len(self._known) >= _KNOWN:
                    self._known.clear()
                    self._whole.clear()
                self._known[request] = route
                if route.way.whole is not None and not route.difference:
                    self._whole[request] = route, route.way.whole
            if outputs is not None:
                return outputs
        self._latest = route
        if not route.difference:
            return route.way.run(feeds, into or {})
        with _naming(route.difference):
            return route.way.run(feeds, into or {})

    def can_have_rooms(self, presents: Mapping[str, str]) -> bool:
        """Whether :meth:`run_step` takes these caches: the outputs by the names of inputs."""
        regions = [program.region for program in self.programs if isinstance(program, RegionProgram)]
        return can_have_rooms(regions, presents)

    def run_step(self, feeds: Mapping[str, Array], step: CacheStep, total: int) -> dict[str, Array]:
        """See :meth:`CpuProgram.run_step`."""
        rooms, past = step.rooms, step.past
        rooms.check(feeds, rooms.sizes(past))
        # Requests of a class take one way.
        kind = shape_class((*(array.shape for array in feeds.values()), (past,)))
        route = self._steps.get(kind)
        equal = self.opened.equal
        if (
            route is None
            or route.way is not self.opened.parts
            or (equal != NOTHING_EQUAL and equal.difference_of({**feeds, **rooms.past(past)}))
        ):
            whole, into = {**feeds, **rooms.past(past)}, rooms.present(total)
            route, outputs = self.route(whole, into)
            if len(self._steps) >= _KNOWN:
                self._steps.clear()
            self._steps[kind] = route
            if outputs is not None or route.way is not self.opened.parts:
                with _naming(route.difference):
                    return rooms.keep(route.way.run(whole, into) if outputs is None else outputs)
        self._latest = route
        return route.way.run_step(feeds, step)

    def route(
        self, feeds: Mapping[str, Array], into: Mapping[str, Array] = _NOTHING
    ) -> tuple[Route, dict[str, Array] | None]:
        """The way that requests like this one take, and the outputs if it had to run for that.

        Raises:
            UsageError: it does not fit the model.
        """
        self._check(feeds)
        difference = self.opened.equal.difference_of(feeds)
        if difference:
            with _naming(difference):
                route, outputs = self._for_any_sizes().route(feeds, into)
            route = replace(route, difference=difference)
            self._latest = route
            return route, outputs
        trials = self.opened.trials
        route, outputs = (Route(self.opened.parts), None) if trials is None else trials.decide(feeds, into)
        self._latest = route
        return route, outputs

    def _for_any_sizes(self) -> RoutedModel:
        """The same model without taking sizes for equal."""
        if self._other is None:
            assert self.opened.otherwise is not None  # whatever takes sizes for equal has it
            self._other = RoutedModel(self.opened.otherwise.opened())
        return self._other

    @property
    def regions(self) -> tuple[RegionProgram, ...]:
        """All that have been opened, those for other sizes too."""
        otherwise = self.opened.otherwise
        other = otherwise.if_opened if otherwise is not None else None
        opened = (self.opened,) if other is None else (self.opened, other)
        programs = (program for one in opened for program in one.parts.programs)
        return tuple(program for program in programs if isinstance(program, RegionProgram))

    @property
    def programs(self) -> tuple[PartProgram, ...]:
        """Regions and what lies between them, in order."""
        return self.opened.parts.programs

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Every node, and why it is where it is, in requests like the one that ran last."""
        latest, other = self._latest, self._other
        if latest.difference and other is not None:
            verdict = _with_reason(latest.verdict, f"planned for any sizes: {latest.difference}")
            return tuple(placed(one, verdict) for one in other.opened.placements)
        verdict = latest.verdict
        if verdict.placement == KERNELS:
            verdict = _with_reason(verdict, self.opened.equal.text)
        return tuple(placed(one, verdict) for one in self.opened.placements)

    @property
    def verdict(self) -> str:
        """See :attr:`Program.verdict`; on requests like the one that ran last."""
        return self._latest.verdict.reason


def _with_reason(verdict: Verdict, reason: str) -> Verdict:
    """``verdict`` with a reason before its own."""
    return replace(verdict, reason="; ".join(filter(None, (reason, verdict.reason))))


@contextmanager
def _naming(difference: str) -> Iterator[None]:
    """Errors of a run, with the sizes that may be what is wrong with it."""
    try:
        yield
    except BackendError as error:
        if not difference:
            raise
        raise BackendError(f"{difference}: {error}") from error
