"""The schedule of another length in sections: most of it is resized, and only the rest is planned.

Between the embeddings of a transformer and what it makes of the last layer's tokens, all tensors are matrices with one
row per token. The schedule of those steps follows from one that is there (``resized``); the steps before and behind
them are planned for each length. Values that one section passes on to another lie in planes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import LANES, Layout
from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.run.schedules.calls import Schedule
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape, Sizes, input_key
from sift_onnx.backends.cpu.run.schedules.resized import ResizableSchedule, are_of_any_rows, resizable
from sift_onnx.backends.cpu.run.schedules.schedule import planned, scheduled
from sift_onnx.backends.cpu.run.schedules.values import OpOf, array_sizes
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.specs import Moving

__all__ = ["Sections", "sections_of"]

# Of the calls, that are resized: else sections cost more than they save.
_LEAST_SHARE = 0.5

# Each value of the result has the same bits in any layout.
_POINTWISE = (_kernels.Elementwise, _kernels.ViewArithmetic)

LayoutOf = Callable[[Shape], Layout]


@dataclass(frozen=True)
class _Section:
    """Consecutive steps.

    Attributes:
        region: of these steps alone.
        first: index of the first one.
        resizable: a schedule of them that others follow from; None if they are planned for each length.
    """

    region: Region
    first: int
    resizable: ResizableSchedule | None = None


@dataclass(frozen=True)
class Sections:
    """A region in sections; see :func:`sections_of`."""

    _region: Region
    _sections: tuple[_Section, ...]
    _passed: tuple[str, ...]
    _op_of: OpOf
    _threads: int
    _isa: str

    def schedule(self, dims: Mapping[str, Sizes], layout_of: LayoutOf) -> Schedule | None:
        """The schedule for values of ``dims``; None where it might be another one.

        Args:
            dims: sizes of all values of the region, by name.
            layout_of: the layout of tensors of a given shape.
        """
        made: list[Schedule] = []
        for section in self._sections:
            own = _dims_of(section.region, dims)
            if section.resizable is not None:
                found = section.resizable.resized(own)
                if found is None or any(layout_of(shape) != "images16" for shape in {*found.shapes}):
                    return None
                made.append(found)
                continue
            op_of = _behind(self._op_of, section.first)
            made.append(scheduled(planned(section.region, own, layout_of, op_of, self._threads, self._isa)))
        return made[0] if len(made) == 1 else self._chained(made, dims)

    def _chained(self, made: Sequence[Schedule], dims: Mapping[str, Sizes]) -> Schedule:
        region = self._region
        places = {pair: (number, 0) for number, pair in enumerate(region.inputs)}
        arrays = {name: (len(places) + number, 0) for number, name in enumerate(region.outputs)}
        passed = 0
        for name in self._passed:
            arrays[name] = (-1, passed)
            passed += -(-math.prod(dims[name]) // LANES) * LANES
        parts = []
        for section, own in zip(self._sections, made, strict=True):
            read = [places.get((name, view)) or arrays[name] for name, view in section.region.inputs]
            parts.append((own.sequence, [*read, *(arrays[name] for name in section.region.outputs)]))
        sequence = _kernels.Sequence.chained(parts, passed, array_sizes(region, dims))
        calls = [sum(len(own.ops) for own in made[:number]) for number in range(len(made))]
        firsts = [section.first for section in self._sections]
        return Schedule(
            sequence,
            tuple(
                None if step is None else first + step
                for first, own in zip(firsts, made, strict=True)
                for step in own.steps
            ),
            tuple(shape for own in made for shape in own.shapes),
            tuple(layout for own in made for layout in own.layouts),
            tuple(op for own in made for op in own.ops),
            {
                begin + call: (first + step, channels)
                for begin, first, own in zip(calls, firsts, made, strict=True)
                for call, (step, channels) in own.attentions.items()
            },
            {
                begin + call: tuple((first + step, shape) for step, shape in together)
                for begin, first, own in zip(calls, firsts, made, strict=True)
                for call, together in own.together.items()
            },
            any(own.is_shortened for own in made),
        )


def sections_of(
    region: Region,
    dims: Mapping[str, Sizes],
    made: Schedule,
    layout_of: LayoutOf,
    op_of: OpOf,
    threads: int,
    isa: str,
) -> Sections | None:
    """A region in sections, of which the largest one is resized; None where that would not pay.

    Args:
        region: of rows only.
        dims: sizes of all values, by name.
        made: its schedule for values of these sizes.
        layout_of: the layout of tensors of a given shape.
        op_of: the operator of a step in a layout.
        threads: that run it.
        isa: instruction set.
    """
    if region.caches or not made.ops:
        return None
    first, end = _largest_run(made, len(region.steps))
    bounds = [bound for bound in ((0, first), (first, end), (end, len(region.steps))) if bound[0] < bound[1]]
    regions = [region.section(slice(*bound)) if len(bounds) > 1 else region for bound in bounds]
    outputs = {*region.outputs}
    passed = tuple(name for own in regions for name in own.outputs if name not in outputs)
    if any(region.dtypes[name] is not DType.FLOAT32 for name in passed):
        return None
    sections: list[_Section] = []
    for (begin, _), own in zip(bounds, regions, strict=True):
        found = None
        if begin == first:
            own_dims = _dims_of(own, dims)
            whole = made
            if len(bounds) > 1:
                whole = scheduled(planned(own, own_dims, layout_of, _behind(op_of, first), threads, isa))
            found = resizable(own, own_dims, whole, isa)
            if found is None or len(whole.ops) < _LEAST_SHARE * len(made.ops):
                return None
        sections.append(_Section(own, begin, found))
    cut = Sections(region, tuple(sections), passed, op_of, threads, isa)
    try:
        again = cut.schedule(dims, layout_of)
    except ValueError:  # places of plain bytes are not proportional to blocks of rows
        return None
    # Results have the same bits in the first run of a length and in others.
    return cut if again is not None and _kernels_of(region, again) == _kernels_of(region, made) else None


def _behind(op_of: OpOf, first: int) -> OpOf:
    """The operators of a section, by their index in it; it begins with step ``first``."""
    return lambda step, layout: op_of(first + step, layout)


def _largest_run(made: Schedule, steps: int) -> tuple[int, int]:
    """First and end of the steps between which most operators in a row do the same for any number of rows."""
    best = (0, 0)
    calls = 0
    numbers = range(len(made.ops))
    for of_any_rows, group in groupby(zip(are_of_any_rows(made), numbers, strict=True), key=lambda pair: pair[0]):
        run = [number for _, number in group]
        own = [step for number in run if (step := made.steps[number]) is not None]
        if not of_any_rows or not own or len(run) <= calls:
            continue
        calls = len(run)
        # What moves values behind the last of them moves them for the steps that come next.
        is_last = all(step is None for step in made.steps[run[-1] + 1 :])
        is_first = all(step is None for step in made.steps[: run[0]])
        best = (0 if is_first else own[0], steps if is_last else own[-1] + 1)
    return best


def _dims_of(region: Region, dims: Mapping[str, Sizes]) -> dict[str, Sizes]:
    """Sizes of the values of a section, out of those of all."""
    keys = [(input_key(name, view), name) for name, view in region.inputs]
    # What another section has made is known by its name alone.
    inputs = {key: dims[key if key in dims else name] for key, name in keys}
    return inputs | {step.output: dims[step.output] for step in region.steps}


def _kernels_of(region: Region, made: Schedule) -> list[tuple[int, type, str, str]]:
    """What computes each step, and in which layouts, but for what is computed value by value."""
    return [
        (step, type(op), op.input_layout, op.output_layout)
        for step, op in zip(made.steps, made.ops, strict=True)
        if step is not None and not isinstance(region.steps[step].spec, Moving) and not isinstance(op, _POINTWISE)
    ]
