"""Calls of operators in a row, and where their operands and results lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import LANES, Layout
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape
from sift_onnx.backends.cpu.run.schedules.placement import Call, Part, place
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.weights.quads import QUAD

__all__ = ["Calls", "Schedule", "bytes_of", "words_of"]

# Bytes: scratch memory is an array of floats, in which a sequence of operators counts its places.
_SCRATCH_UNIT = DType.FLOAT32.itemsize
# In front of quads whose scale a run finds.
_DYNAMIC_BYTES = 64
_Place = tuple[int, int] | None
_OtherPlaces = tuple[_Place, _Place, _Place]


@dataclass(frozen=True)
class Schedule:
    """What runs.

    Attributes:
        sequence: the operators with their places.
        steps: for each operator the region's step that it is of; None for a change of layout or a copy.
        shapes: for each operator the shape of its operand.
        layouts: for each operator that of its operand.
        ops: the operators.
        attentions: those of them that know the lengths of sequences: the region's step, and channels of the operands.
        together: those of them that run several steps: these, with the shapes of their operands.
        is_shortened: whether copies are left out, since one of their tensors lies within the other.
    """

    sequence: _kernels.Sequence
    steps: tuple[int | None, ...]
    shapes: tuple[Shape, ...]
    layouts: tuple[Layout, ...]
    ops: tuple[_kernels.Op, ...]
    attentions: Mapping[int, tuple[int, tuple[tuple[int, int], ...]]]
    together: Mapping[int, tuple[tuple[int, Shape], ...]]
    is_shortened: bool


def bytes_of(shape: Shape, layout: Layout, dtype: DType) -> int:
    """That a tensor takes in a layout; those of bytes take whole words."""
    n, c, h, w = shape
    match layout:
        case "planes":
            return dtype.itemsize * n * c * h * w
        case "images16":
            return dtype.itemsize * _whole(n, LANES) * c * h * w
        case "bytes":
            return _whole(n * c * h * w, _SCRATCH_UNIT)
        case "integers":
            return DType.INT64.itemsize * n * c * h * w
    quads = _whole(n * h * w, LANES) * _whole(c, QUAD)
    if layout == "float_quads":
        return (DType.UINT8.itemsize + DType.FLOAT32.itemsize) * quads
    if layout == "quads":
        return quads
    # Of rows as much for each block, so that places are proportional to blocks (``resized.py``).
    return quads + _DYNAMIC_BYTES * (_whole(n, LANES) // LANES if h * w == 1 else 1)


def words_of(count: int, dtype: DType) -> int:
    """Floats, or words of four bytes, of an array of the caller."""
    return -(-dtype.itemsize * count // _SCRATCH_UNIT)


def _whole(count: int, unit: int) -> int:
    """The least multiple of ``unit`` that is not below ``count``."""
    return -(-count // unit) * unit


@dataclass
class Calls:
    """Collects calls. Values are named after the model's, with a layout as suffix."""

    calls: list[Call] = field(default_factory=list)
    nbytes: dict[str, int] = field(default_factory=dict)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    attentions: dict[int, tuple[int, tuple[tuple[int, int], ...]]] = field(default_factory=dict)

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
        self.nbytes[output] = bytes_of(made, _layout(op.output_layout), dtype)
        return made

    def scheduled(self, array_sizes: list[int]) -> Schedule:
        """The calls that are needed, with a place for each value; the caller's arrays have ``array_sizes`` floats."""
        calls, found, total = place(self.calls, self.nbytes, self.places)
        places = {name: (array, offset // _SCRATCH_UNIT) for name, (array, offset) in found.items()}
        sequence = _kernels.Sequence(
            [
                (call.op, call.shape, places[call.inputs[0]], _others(call, places), places[call.output])
                for call in calls
            ],
            total // _SCRATCH_UNIT,
            array_sizes,
        )
        layouts = tuple(_layout(call.op.input_layout) for call in calls)
        return Schedule(
            sequence,
            tuple([call.step for call in calls]),
            tuple([call.shape for call in calls]),
            layouts,
            tuple([call.op for call in calls]),
            self.attentions,
            {number: call.together for number, call in enumerate(calls) if call.together},
            len(calls) < len(self.calls),
        )


def _layout(name: str) -> Layout:
    return cast(Layout, name)


def _others(call: Call, places: Mapping[str, tuple[int, int]]) -> _OtherPlaces:
    read = call.inputs
    second = places[read[1]] if len(read) > 1 else None
    third = places[read[2]] if len(read) > 2 else None
    return second, third, places[call.mask] if call.mask else None
