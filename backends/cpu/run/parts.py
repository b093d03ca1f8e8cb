"""Programs that run one after another: regions, and what onnxruntime has between them."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.costs import CACHED_BYTES, Estimate, plan_estimate, region_estimate
from sift_onnx.backends.cpu.lower.rates import Rates
from sift_onnx.backends.cpu.run.cache_rooms import CacheStep
from sift_onnx.backends.cpu.run.conversion import Conversion
from sift_onnx.backends.cpu.run.numpy_program import NumpyProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram, StepTime
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram

__all__ = ["PartProgram", "PartTime", "Parts", "Shapes"]

Array = npt.NDArray[Any]
PartProgram = RegionProgram | OnnxRuntimeProgram | NumpyProgram
# A value, and the first and the last of its axes.
SizesRead = tuple[str, int, int | None]
_NOTHING: Mapping[str, Array] = {}
_LAST_LEVEL_BYTES = max(CACHED_BYTES, _kernels.cache_bytes()[2])
# Of what a part reads, by name.
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class PartTime:
    """A part as it ran: seconds since the run began, how long it took, and within a region the same of its steps."""

    program: PartProgram
    start: float
    seconds: float
    steps: tuple[StepTime, ...] = ()


@dataclass(frozen=True)
class _Part:
    """A program, what it reads and makes, and which values are not needed after it; sizes of values that it reads."""

    program: PartProgram
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dead: tuple[str, ...]
    shapes: Mapping[str, SizesRead] = field(default_factory=dict)
    sized: frozenset[str] = frozenset()

    def run(
        self,
        values: dict[str, Array],
        times: list[StepTime] | None = None,
        into: Mapping[str, Array] | CacheStep = _NOTHING,
        is_alone: bool = False,
    ) -> None:
        if isinstance(self.program, RegionProgram):
            made = self.program.region.outputs if isinstance(into, CacheStep) else self.outputs
            values.update(zip(made, self.program.run(values, times, into, is_alone), strict=True))
            return
        values.update(self.program.run_unchecked(self.operands(values)))

    def operands(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """What the program reads, by name."""
        feeds = {name: values[name] for name in self.inputs if name not in self.sized}
        for name, (value, first, end) in self.shapes.items():
            feeds[name] = np.array(values[value].shape[first:end], np.int64)
        return feeds


class Parts:
    """A model as a sequence of programs.

    Attributes:
        programs: in order.
        outputs: names of the model's outputs, in order.
    """

    def __init__(
        self,
        programs: Sequence[PartProgram],
        outputs: Sequence[str],
        shapes: Mapping[str, SizesRead] | None = None,
        conversion: Conversion | None = None,
    ) -> None:
        """Put programs in order.

        Args:
            programs: what runs.
            outputs: of the model.
            shapes: inputs of sessions that are sizes of other values, by name.
            conversion: of what is fed and returned; None where programs have the model's types.
        """
        self._conversion = conversion
        self.programs = tuple(programs)
        self.outputs = tuple(outputs)
        self._parts = _with_lifetimes(self.programs, self.outputs, shapes or {})
        self._only = self.programs[0] if len(self.programs) == 1 else None
        outside = [part for part in self._parts if not isinstance(part.program, RegionProgram)]
        self._read_outside = {name for part in outside for name in (*part.inputs, *part.sized)}
        self._is_alone = False

    def on_one_thread(self) -> Parts:
        """The same programs, whose kernels the calling thread runs by itself."""
        alone = copy.copy(self)
        alone._is_alone = True
        return alone

    @property
    def whole(self) -> OnnxRuntimeProgram | None:
        """The session that runs the model by itself, if that is all there is."""
        only = self._only
        return only if isinstance(only, OnnxRuntimeProgram) and self._conversion is None else None

    def run(self, feeds: Mapping[str, Array], into: Mapping[str, Array] = _NOTHING) -> dict[str, Array]:
        """The model's outputs for feeds that are known to fit; see :meth:`RegionProgram.run` for ``into``."""
        if self._conversion is not None:
            made = self._run(self._conversion.inwards(feeds), self._conversion.into(into))
            return self._conversion.outwards(made, feeds)
        return self._run(feeds, into)

    def _run(self, feeds: Mapping[str, Array], into: Mapping[str, Array]) -> dict[str, Array]:
        only = self._only
        if isinstance(only, RegionProgram):
            arrays = only.run(feeds, None, into, self._is_alone)
            if len(arrays) == 1:
                return {self.outputs[0]: arrays[0]}
            made = dict(zip(self._parts[0].outputs, arrays, strict=True))
            return {name: made[name] for name in self.outputs}
        if only is not None:
            return only.run_unchecked(feeds)
        values = dict(feeds)
        for part in self._parts:
            part.run(values, None, into, self._is_alone)
            for name in part.dead:
                del values[name]
        return {name: values[name] for name in self.outputs}

    def run_step(self, feeds: Mapping[str, Array], step: CacheStep) -> dict[str, Array]:
        """As :meth:`run`, with caches that stay in their rooms: they are neither fed nor returned."""
        values = self._values(feeds)
        if self._read_outside:
            values |= step.rooms.past(step.past, self._read_outside)
        for part in self._parts:
            part.run(values, None, step, self._is_alone)
            for name in part.dead:
                values.pop(name, None)
        made = {name: values[name] for name in self.outputs if name in values}
        return made if self._conversion is None else self._conversion.outwards(made, {})

    def run_timed(self, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], list[PartTime]]:
        """As :meth:`run`, and how long each part took, and each step of the regions."""
        values = self._values(feeds)
        begin = time.perf_counter()
        times = []
        for part in self._parts:
            steps: list[StepTime] = []
            start = time.perf_counter()
            part.run(values, steps, is_alone=self._is_alone)
            times.append(PartTime(part.program, start - begin, time.perf_counter() - start, tuple(steps)))
        return self._results(values, feeds), times

    def _values(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return dict(feeds) if self._conversion is None else self._conversion.inwards(feeds)

    def _results(self, values: Mapping[str, Array], feeds: Mapping[str, Array]) -> dict[str, Array]:
        made = {name: values[name] for name in self.outputs}
        return made if self._conversion is None else self._conversion.outwards(made, feeds)

    def in_turn(self, feeds: Mapping[str, Array]) -> Iterator[tuple[PartProgram, dict[str, Array]]]:
        """Each program and what it reads, by name; it runs when the next one is asked for."""
        values = self._values(feeds)
        for part in self._parts:
            yield part.program, part.operands(values)
            part.run(values, is_alone=self._is_alone)

    def estimate(self, shapes: Sequence[Shapes], rates: Rates) -> Estimate:
        """Seconds for operands of these sizes, against onnxruntime on the whole model; see ``lower/costs.py``.

        Dense weights count as read from memory if the last-level cache cannot hold them: if others leave it to this
        process, onnxruntime reads them from there, in a fraction of the time.
        """
        regions = [
            region_estimate(
                program.region.steps, own, program.region.outputs, rates, _LAST_LEVEL_BYTES, program.sizes_for(own)
            )
            for program, own in zip(self.programs, shapes, strict=True)
            if isinstance(program, RegionProgram)
        ]
        return plan_estimate(sum(regions, Estimate(0.0, 0.0)), len(regions), len(shapes) - len(regions), rates)

    def run_shaped(
        self, feeds: Mapping[str, Array], into: Mapping[str, Array] = _NOTHING
    ) -> tuple[dict[str, Array], list[Shapes], float]:
        """As :meth:`run`, with the sizes of what each part read, by name, and the seconds that plans took."""
        values = self._values(feeds)
        into = into if self._conversion is None else self._conversion.into(into)
        shapes = []
        regions = [program for program in self.programs if isinstance(program, RegionProgram)]
        planned = sum(region.planning_seconds for region in regions)
        for part in self._parts:
            shapes.append({name: values[name].shape for name in part.inputs})
            part.run(values, None, into, self._is_alone)
            for name in part.dead:
                del values[name]
        planning = sum(region.planning_seconds for region in regions) - planned
        return self._results(values, feeds), shapes, planning


def _names_of(program: NumpyProgram | OnnxRuntimeProgram) -> tuple[Sequence[str], tuple[str, ...]]:
    """Of inputs and outputs."""
    if isinstance(program, NumpyProgram):
        return program.inputs, tuple(program.outputs)
    return [spec.name for spec in program.inputs], tuple(spec.name for spec in program.outputs)


def _with_lifetimes(
    programs: Sequence[PartProgram], outputs: Sequence[str], shapes: Mapping[str, SizesRead]
) -> tuple[_Part, ...]:
    parts: list[_Part] = []
    needed = set(outputs)
    for program in reversed(programs):
        if isinstance(program, RegionProgram):
            reads, made, own = program.region.read, program.region.made, {}
        else:
            inputs, made = _names_of(program)
            own = {name: shapes[name] for name in inputs if name in shapes}
            fed = [name for name in inputs if name not in own]
            reads = tuple(dict.fromkeys((*fed, *(name for name, _, _ in own.values()))))
        dead = tuple(name for name in dict.fromkeys((*reads, *made)) if name not in needed)
        sized = frozenset(name for name, _, _ in own.values())
        parts.append(_Part(program, reads, made, dead, own, sized))
        needed.update(reads)
    return tuple(reversed(parts))
