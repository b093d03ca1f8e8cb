"""A region for a number of images or rows: the sequence of operators, and where each tensor lies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import LANES, Layout
from sift_onnx.backends.cpu.lower.plan import Region
from sift_onnx.backends.cpu.run.operators import build, enlarged
from sift_onnx.backends.cpu.run.placement import Call, Part, place
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.rules import Step, View
from sift_onnx.backends.lowering.specs import Channels, Concat, Elementwise, LinearResize, PixelCopy, Reshaped
from sift_onnx.errors import BackendError

__all__ = ["Schedule", "Shape", "kernel_shape", "schedule"]

Shape = tuple[int, int, int, int]
# Bytes: scratch memory is an array of floats, in which a sequence of operators counts its places.
_SCRATCH_UNIT = DType.FLOAT32.itemsize
_COPY = Elementwise("first")
_Place = tuple[int, int] | None
_OtherPlaces = tuple[_Place, _Place, _Place]


@dataclass(frozen=True)
class Schedule:
    """What runs.

    Attributes:
        sequence: the operators with their places.
        steps: for each operator the region's step that it is of; None for a change of layout or a copy.
        shapes: for each operator the shape of its operand.
    """

    sequence: _kernels.Sequence
    steps: tuple[int | None, ...]
    shapes: tuple[Shape, ...]


def kernel_shape(sizes: Sequence[int], view: View) -> Shape:
    """(n, c, h, w) of a tensor as kernels read it."""
    if view != "rows":
        n, c, h, w = (*(1,) * (4 - len(sizes)), *sizes)
        return (n, c, h, w)
    return (math.prod(sizes[:-1]), sizes[-1], 1, 1)


def _bytes(shape: Shape, layout: Layout, dtype: DType) -> int:
    n = shape[0] if layout == "planes" else -(-shape[0] // LANES) * LANES
    return dtype.itemsize * n * shape[1] * shape[2] * shape[3]


@dataclass
class _Builder:
    """Collects calls. Values are named after the model's, with a layout as suffix."""

    calls: list[Call] = field(default_factory=list)
    nbytes: dict[str, int] = field(default_factory=dict)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)

    def call(
        self,
        op: _kernels.Op,
        shape: Shape,
        inputs: tuple[str, ...],
        output: str,
        dtype: DType,
        step: int | None = None,
        mask: str = "",
        part: Part | None = None,
    ) -> Shape:
        """Add a call; the shape of its result."""
        made = op.output_shape(shape)
        self.calls.append(Call(op, shape, inputs, output, step, mask, part))
        self.nbytes[output] = _bytes(made, op.output_layout, dtype)  # type: ignore[arg-type]
        return made


def schedule(
    region: Region, shapes: Mapping[str, Shape], layout: Layout, op_of: Callable[[int, Layout], _kernels.Op], isa: str
) -> Schedule:
    """The schedule of ``region``.

    The caller's arrays are the region's inputs, in order, then its outputs; all in planes.

    Args:
        region: to be run.
        shapes: of each value, by name; of the region's inputs, under :func:`input_key`.
        layout: of everything between inputs and outputs.
        op_of: the operator of a step in a layout; the schedules of a region share them.
        isa: instruction set.
    """
    builder = _Builder()
    where: dict[tuple[str, View | None], str] = {(name, view): f"{name}:{view}:array" for name, view in region.inputs}
    direct = {name: f"{name}:array" for name in region.outputs}
    builder.places.update((array, (number, 0)) for number, array in enumerate([*where.values(), *direct.values()]))
    keys = [*(input_key(name, view) for name, view in region.inputs), *region.outputs]
    array_sizes = [math.prod(shapes[key]) for key in keys]
    made = {step.output for step in region.steps}
    dtypes = region.dtypes

    def operand(name: str, view: View) -> str:
        """The value in the layout; an input is brought into it when it is first read."""
        if name in made:
            return where[name, None]
        found = where[name, view]
        if layout == "images16" and builder.places.get(found):
            moved = f"{name}:{view}:lanes"
            shape = shapes[input_key(name, view)]
            builder.call(_kernels.Reorder("planes", isa=isa), shape, (found,), moved, dtypes[name])
            where[name, view] = found = moved
        return found

    for index, step in enumerate(region.steps):
        # What a resize follows is read for its size alone.
        read = step.inputs[:1] if isinstance(step.spec, (PixelCopy, LinearResize)) else step.inputs
        inputs = tuple(operand(name, step.view) for name in read)
        own = [shapes[name if name in made else input_key(name, step.view)] for name in step.inputs]
        if isinstance(step.spec, Reshaped):
            result = inputs[0]
        else:
            in_place = layout == "planes" and step.output in direct
            result = direct[step.output] if in_place else f"{step.output}:lanes"
            mask = where[step.mask, "array"] if step.mask else ""
            if isinstance(step.spec, Elementwise) and step.spec.broadcasts:
                inputs = _broadcast(builder, step, inputs, own, shapes[step.output], layout)
                own = [shapes[step.output]] * len(own)
            if isinstance(step.spec, (Channels, Concat)):
                made_shape = _copy_channels(builder, step, index, inputs, own, result, layout)
            else:
                made_shape = builder.call(op_of(index, layout), own[0], inputs, result, step.dtype, index, mask)
            if made_shape != shapes[step.output]:
                raise BackendError(f"{step.output!r} comes out as {made_shape}, and {shapes[step.output]} was expected")
        where[step.output, None] = result
        if step.output in direct and result != direct[step.output]:
            out = direct[step.output]
            leaves_lanes = layout == "images16" and not builder.places.get(result)
            copy = _kernels.Reorder("images16", isa=isa) if leaves_lanes else build(_COPY, "planes", None, isa)
            builder.call(copy, shapes[step.output], (result,), out, step.dtype)
    return _placed(builder, array_sizes)


def input_key(name: str, view: View) -> str:
    """Under which an input's shape is found: it may come in several views."""
    return f"{name}/{view}"


def _broadcast(
    builder: _Builder, step: Step, inputs: tuple[str, ...], shapes: Sequence[Shape], result: Shape, layout: Layout
) -> tuple[str, ...]:
    """The operands at the size of the result."""
    names = []
    for name, shape in zip(inputs, shapes, strict=True):
        names.append(name)
        if shape != result:
            names[-1] = f"{name}:for:{step.output}"
            builder.call(enlarged(shape, result, layout), shape, (name,), names[-1], step.dtype)
    return tuple(names)


def _copy_channels(
    builder: _Builder, step: Step, index: int, inputs: tuple[str, ...], shapes: Sequence[Shape], result: str,
    layout: Layout,
) -> Shape:  # fmt: skip
    """Copies for a slice, a shuffle, or each operand of a concatenation; most are not run, see ``placement``."""
    spec, shape = step.spec, shapes[0]
    plane = _bytes((shape[0], 1, *shape[2:]), layout, step.dtype)
    is_contiguous = shape[0] <= (1 if layout == "planes" else LANES)
    if isinstance(spec, Channels):
        op = _kernels.ChannelCopy(spec.taken, 0, len(spec.taken), layout=layout)
        part = Part(inputs[0], spec.taken[0] * plane) if is_contiguous and spec.is_range else None
        return builder.call(op, shape, inputs, result, step.dtype, index, part=part)
    assert isinstance(spec, Concat)
    first, total = 0, sum(spec.channels)
    for name, own, count in zip(inputs, shapes, spec.channels, strict=True):
        op = _kernels.ChannelCopy(range(count), first, total, layout=layout)
        part = Part(result, first * plane) if is_contiguous else None
        shape = builder.call(op, own, (name,), result, step.dtype, index, part=part)
        first += count
    return shape


def _placed(builder: _Builder, array_sizes: list[int]) -> Schedule:
    calls, found, total = place(builder.calls, builder.nbytes, builder.places)
    places = {name: (array, offset // _SCRATCH_UNIT) for name, (array, offset) in found.items()}
    sequence = _kernels.Sequence(
        [(call.op, call.shape, places[call.inputs[0]], _others(call, places), places[call.output]) for call in calls],
        total // _SCRATCH_UNIT,
        array_sizes,
    )
    return Schedule(sequence, tuple(call.step for call in calls), tuple(call.shape for call in calls))


def _others(call: Call, places: Mapping[str, tuple[int, int]]) -> _OtherPlaces:
    second, third = (places[call.inputs[i]] if i < len(call.inputs) else None for i in (1, 2))
    return second, third, places[call.mask] if call.mask else None
