"""An opened model, and the way that each of its requests takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.base import Placement
from sift_onnx.backends.cpu.run.opening import OpenedModel
from sift_onnx.backends.cpu.run.parts import PartProgram
from sift_onnx.backends.cpu.run.trials import Route, placed
from sift_onnx.errors import UsageError
from sift_onnx.shapes.random_inputs import check_feeds
from sift_onnx.shapes.tensor_specs import TensorSpec

__all__ = ["RoutedModel"]

Array = npt.NDArray[Any]
_NOTHING: Mapping[str, Array] = {}
# Requests whose names, shapes and types have been checked, and are not looked at again.
_KNOWN = 64


class RoutedModel:
    """Runs requests in the kernels, or in onnxruntime where trials have shown that it is faster; thread-safe.

    Attributes:
        opened: what runs.
    """

    def __init__(self, opened: OpenedModel) -> None:
        """Nothing has run yet."""
        self.opened = opened
        self._latest = Route(opened.parts)
        self._known: dict[tuple[Any, ...], Route] = {}

    def run(self, feeds: Mapping[str, Array], into: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """See :meth:`CpuProgram.run`."""
        request: tuple[Any, ...] = ()
        for name, array in feeds.items():
            request += (name, array.shape, array.dtype)
        route = self._known.get(request)
        if route is None:
            route, outputs = self.route(feeds, into or {})
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[request] = route
            if outputs is not None:
                return outputs
        self._latest = route
        return route.way.run(feeds, into or {})

    def route(
        self, feeds: Mapping[str, Array], into: Mapping[str, Array] = _NOTHING
    ) -> tuple[Route, dict[str, Array] | None]:
        """The way that requests like this one take, and the outputs if it had to run for that.

        Raises:
            UsageError: it does not fit the model.
        """
        _check(self._specs(feeds), feeds)
        trials = self.opened.trials
        route, outputs = (Route(self.opened.parts), None) if trials is None else trials.decide(feeds, into)
        self._latest = route
        return route, outputs

    def _specs(self, feeds: Mapping[str, Array]) -> Sequence[TensorSpec]:
        """What a request is held against; a cache of halves may also be float32."""
        held = set(self.opened.held.values())
        if not held:
            return self.opened.inputs
        wide = {name for name in held if name in feeds and feeds[name].dtype == np.float32}
        return [replace(s, dtype=np.dtype(np.float32)) if s.name in wide else s for s in self.opened.inputs]

    @property
    def programs(self) -> tuple[PartProgram, ...]:
        """Regions and what lies between them, in order."""
        return self.opened.parts.programs

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Every node, and why it is where it is, in requests like the one that ran last."""
        return tuple(placed(one, self._latest.verdict) for one in self.opened.placements)

    @property
    def verdict(self) -> str:
        """See :attr:`Program.verdict`; on requests like the one that ran last."""
        return self._latest.verdict.reason


def _check(inputs: Sequence[TensorSpec], feeds: Mapping[str, Array]) -> None:
    """Also that axes of one name have one size: the lowering relies on it.

    Raises:
        UsageError: see :func:`check_feeds`, or two sizes contradict each other.
    """
    check_feeds(inputs, feeds)
    sizes: dict[str, tuple[int, str]] = {}
    for spec in inputs:
        for axis, (name, size) in enumerate(zip(spec.extents, feeds[spec.name].shape, strict=False)):
            if not isinstance(name, str):
                continue
            known, where = sizes.setdefault(name, (size, spec.name))
            if known != size:
                raise UsageError(
                    f"input {spec.name!r} has {size} along axis {axis}, but {name!r} is {known} in input {where!r}"
                )
