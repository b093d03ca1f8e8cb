"""Calls of operators in a row, and where their operands and results lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import LANES, Layout
from sift_onnx.backends.cpu.run.placed_views import Shape
from sift_onnx.backends.cpu.run.scratch import Lifetime, pack
from sift_onnx.backends.lowering.element_types import DType

__all__ = ["Calls", "Schedule"]

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
        layouts: for each operator that of its operand.
    """

    sequence: _kernels.Sequence
    steps: tuple[int | None, ...]
    shapes: tuple[Shape, ...]
    layouts: tuple[Layout, ...]


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
class Calls:
    """Collects calls. Values are named after the model's, with a layout as suffix."""

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

    def scheduled(self, array_sizes: list[int]) -> Schedule:
        """The calls with a place for each value; the caller's arrays have ``array_sizes`` floats."""
        last = {name: i for i, call in enumerate(self.calls) for name in call.inputs}
        home: dict[str, str] = {}
        first: dict[str, int] = {}
        for i, call in enumerate(self.calls):
            name = call.output
            if name in self.places or name in home:
                continue
            home[name], first[name] = name, i
            # A result takes the place of a second operand that no later call reads: it is read just before the write.
            if len(call.inputs) == 2:
                second = call.inputs[1]
                dies = second in home and last[second] == i and second != call.inputs[0]
                if dies and self.nbytes[second] == self.nbytes[name]:
                    home[name] = home[second]
        lifetimes: dict[str, Lifetime] = {}
        for name, owner in home.items():
            ends = last.get(name, first[name])
            known = lifetimes.get(owner, Lifetime(self.nbytes[owner], first[name], ends))
            lifetimes[owner] = replace(known, last=max(known.last, ends))
        offsets, total = pack(lifetimes)
        places = self.places | {name: (_SCRATCH, offsets[owner] // _SCRATCH_UNIT) for name, owner in home.items()}
        sequence = _kernels.Sequence(
            [
                (call.op, call.shape, places[call.inputs[0]], _others(call, places), places[call.output])
                for call in self.calls
            ],
            total // _SCRATCH_UNIT,
            array_sizes,
        )
        calls = self.calls
        layouts = tuple(_layout(call.op.input_layout) for call in calls)
        return Schedule(sequence, tuple(call.step for call in calls), tuple(call.shape for call in calls), layouts)


def _layout(name: str) -> Layout:
    return cast(Layout, name)


def _others(call: _Call, places: Mapping[str, tuple[int, int]]) -> _OtherPlaces:
    second, third = (places[call.inputs[i]] if i < len(call.inputs) else None for i in (1, 2))
    return second, third, places[call.mask] if call.mask else None
