"""A region for a number of images or rows: the sequence of operators, and where each tensor lies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import LANES, Layout
from sift_onnx.backends.cpu.lower.plan import Region
from sift_onnx.backends.cpu.run.operators import build
from sift_onnx.backends.cpu.run.scratch import Lifetime, pack
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.rules import View
from sift_onnx.backends.lowering.specs import Elementwise, Reshaped
from sift_onnx.errors import BackendError

__all__ = ["Schedule", "Shape", "kernel_shape", "schedule"]

Shape = tuple[int, int, int, int]
_SCRATCH = -1
# Bytes: scratch memory is an array of floats, in which a sequence of operators counts its places.
_SCRATCH_UNIT = DType.FLOAT32.itemsize
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
class _Call:
    op: _kernels.Op
    shape: Shape
    inputs: tuple[str, ...]
    output: str
    step: int | None
    mask: str = ""


@dataclass
class _Builder:
    """Collects calls. Values are named after the model's, with a layout as suffix."""

    layout: Layout
    isa: str
    calls: list[_Call] = field(default_factory=list)
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
    ) -> Shape:
        """Add a call; the shape of its result."""
        made = op.output_shape(shape)
        self.calls.append(_Call(op, shape, inputs, output, step, mask))
        self.nbytes[output] = _bytes(made, op.output_layout, dtype)  # type: ignore[arg-type]
        return made


def schedule(
    region: Region,
    shapes: Mapping[str, Shape],
    layout: Layout,
    op_of: Callable[[int, Layout], _kernels.Op],
    isa: str,
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
    builder = _Builder(layout, isa)
    array_sizes: list[int] = []
    where: dict[tuple[str, View | None], str] = {}
    made = {step.output for step in region.steps}
    dtypes = region.dtypes
    for name, view in region.inputs:
        array = f"{name}:{view}:array"
        builder.places[array] = (len(array_sizes), 0)
        array_sizes.append(math.prod(shapes[input_key(name, view)]))
        where[name, view] = array
    direct: dict[str, str] = {}
    for name in region.outputs:
        array = f"{name}:array"
        builder.places[array] = (len(array_sizes), 0)
        array_sizes.append(math.prod(shapes[name]))
        direct[name] = array

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
        inputs = tuple(operand(name, step.view) for name in step.inputs)
        first = step.inputs[0]
        shape = shapes[first] if first in made else shapes[input_key(first, step.view)]
        if isinstance(step.spec, Reshaped):
            result = inputs[0]
        else:
            in_place = layout == "planes" and step.output in direct
            result = direct[step.output] if in_place else f"{step.output}:lanes"
            mask = where[step.mask, "array"] if step.mask else ""
            made_shape = builder.call(op_of(index, layout), shape, inputs, result, step.dtype, index, mask)
            if made_shape != shapes[step.output]:
                raise BackendError(f"{step.output!r} comes out as {made_shape}, and {shapes[step.output]} was expected")
        where[step.output, None] = result
        if step.output in direct and result != direct[step.output]:
            out = direct[step.output]
            if layout == "images16" and not builder.places.get(result):
                builder.call(_kernels.Reorder("images16", isa=isa), shapes[step.output], (result,), out, step.dtype)
            else:
                copy = build(Elementwise("first"), "planes", None, isa)
                builder.call(copy, shapes[step.output], (result,), out, step.dtype)
    return _placed(builder, array_sizes)


def input_key(name: str, view: View) -> str:
    """Under which an input's shape is found: it may come in several views."""
    return f"{name}/{view}"


def _placed(builder: _Builder, array_sizes: list[int]) -> Schedule:
    last = {name: i for i, call in enumerate(builder.calls) for name in call.inputs}
    home: dict[str, str] = {}
    first: dict[str, int] = {}
    for i, call in enumerate(builder.calls):
        name = call.output
        if name in builder.places:
            continue
        home[name], first[name] = name, i
        # A result takes the place of a second operand that no later call reads: it is read just before the write.
        if len(call.inputs) == 2:
            second = call.inputs[1]
            dies = second in home and last[second] == i and second != call.inputs[0]
            if dies and builder.nbytes[second] == builder.nbytes[name]:
                home[name] = home[second]
    lifetimes: dict[str, Lifetime] = {}
    for name, owner in home.items():
        ends = last.get(name, first[name])
        known = lifetimes.get(owner)
        begin = first[name] if known is None else known.first
        lifetimes[owner] = Lifetime(builder.nbytes[owner], begin, ends if known is None else max(known.last, ends))
    offsets, total = pack(lifetimes)
    places = builder.places | {name: (_SCRATCH, offsets[owner] // _SCRATCH_UNIT) for name, owner in home.items()}
    sequence = _kernels.Sequence(
        [
            (
                call.op,
                call.shape,
                places[call.inputs[0]],
                _others(call, places),
                places[call.output],
            )
            for call in builder.calls
        ],
        total // _SCRATCH_UNIT,
        array_sizes,
    )
    return Schedule(
        sequence,
        tuple(call.step for call in builder.calls),
        tuple(call.shape for call in builder.calls),
    )


def _others(call: _Call, places: Mapping[str, tuple[int, int]]) -> _OtherPlaces:
    second, third = (places[call.inputs[i]] if i < len(call.inputs) else None for i in (1, 2))
    return second, third, places[call.mask] if call.mask else None
