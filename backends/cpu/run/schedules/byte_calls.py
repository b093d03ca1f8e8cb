"""Quantized values in a schedule: bytes in quads, four channels of a position side by side, from step to step.

What arrives from outside, or leaves, is bytes in the model's order. Every operator on bytes that the kernels have reads
and makes quads, and what moves whole positions copies quads as words. For anything else that moves values, bytes become
floats of the same numbers, 0 to 255, which are moved as floats are: that is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import LANES, Layout
from sift_onnx.backends.cpu.run.schedules.calls import Calls
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape, Sizes
from sift_onnx.backends.cpu.run.schedules.placed_views import PlacedView, Stored
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.names import stored_key
from sift_onnx.backends.lowering.quantization import Quantization
from sift_onnx.backends.lowering.rules import Step, View
from sift_onnx.backends.lowering.specs import Joined, Moving, PixelCopy, Reshaped, Sliced, Transposed
from sift_onnx.weights.quads import quads_of

__all__ = ["SAME_NUMBERS", "ByteCalls", "is_on_quads", "position_copy", "positions_read"]

# Bytes as floats of the same numbers.
SAME_NUMBERS = Quantization(1.0, 0)
# Brings floats of the same numbers together as a tensor.
AsFloats = Callable[[PlacedView], Stored]


@dataclass
class ByteCalls:
    """Where each quantized value lies, and the calls that bring it where it is read.

    Attributes:
        calls: to which they are added.
        isa: instruction set.
        stored: tensors of bytes or quads, by value.
        float_quads: floats with bytes beside, by value.
        floats: values that have been moved as floats of the same numbers.
        signed: values from outside that are int8.
    """

    calls: Calls
    isa: str
    stored: dict[str, Stored] = field(default_factory=dict)
    float_quads: dict[str, Stored] = field(default_factory=dict)
    floats: dict[str, PlacedView] = field(default_factory=dict)
    signed: set[str] = field(default_factory=set)
    _copies: dict[tuple[str, Shape, Layout], Stored] = field(default_factory=dict)

    def quads(self, name: str, shape: Shape, as_floats: AsFloats) -> Stored:
        """The value in quads of ``shape``.

        Args:
            name: of the value.
            shape: (n, c, h, w).
            as_floats: for values that have been moved as floats.
        """
        if name not in self.stored:
            plain = as_floats(self.floats[name])
            key = stored_key(name, "quads")
            op = _kernels.Quantize(SAME_NUMBERS.scale, SAME_NUMBERS.zero, source=plain.layout, isa=self.isa)
            self.stored[name] = self._called(op, plain, key)
        found = self.stored[name]
        if found.layout == "bytes":
            return self._reordered(replace(found, shape=shape), to_quads=True, is_signed=name in self.signed)
        if _are_same_quads(found.shape, shape):
            return replace(found, shape=shape)
        plain = self._reordered(found, to_quads=False, is_signed=False)
        return self._reordered(replace(plain, shape=shape), to_quads=True, is_signed=False)

    def deliver(self, name: str, shape: Shape, out: str, is_signed: bool, as_floats: AsFloats) -> None:
        """Bring a value into the caller's array ``out``."""
        found = self.quads(name, shape, as_floats)
        op = _kernels.ReorderBytes(to_quads=False, is_signed=is_signed, isa=self.isa)
        self.calls.call(op, found.shape, (found.key,), out, DType.UINT8)

    def numbers(self, name: str, shape: Shape, layout: Layout, as_floats: AsFloats) -> Stored:
        """Floats of the same numbers, 0 to 255, as a tensor."""
        found = self.quads(name, shape, as_floats)
        key = (found.key, shape, layout)
        if key not in self._copies:
            op = _kernels.Dequantize(SAME_NUMBERS.scale, SAME_NUMBERS.zero, layout=layout, isa=self.isa)
            self._copies[key] = self._called(op, found, stored_key(found.key, f"numbers {len(self._copies)}"), layout)
        return self._copies[key]

    def _reordered(self, found: Stored, to_quads: bool, is_signed: bool) -> Stored:
        layout: Layout = "quads" if to_quads else "bytes"
        key = (found.key, found.shape, layout)
        if key not in self._copies:
            op = _kernels.ReorderBytes(to_quads=to_quads, is_signed=is_signed, isa=self.isa)
            self._copies[key] = self._called(op, found, stored_key(found.key, f"{layout} {len(self._copies)}"), layout)
        return self._copies[key]

    def _called(self, op: _kernels.Op, operand: Stored, key: str, layout: Layout = "quads") -> Stored:
        dtype = DType.FLOAT32 if layout in ("planes", "images16") else DType.UINT8
        return Stored(key, self.calls.call(op, operand.shape, (operand.key,), key, dtype), layout)


def is_on_quads(spec: Moving, dims: Sizes, view: View) -> bool:
    """Whether a step that moves bytes has an operator on quads: channels are cut or joined, or only sizes change."""
    channel_axis = 1 if view == "image" else len(dims) - 1
    match spec:
        case Reshaped():
            return True
        case Sliced(ranges=(taken,)):
            return taken.axis == channel_axis and taken.step == 1 and not spec.drops
        case Joined():
            return spec.axis == channel_axis and not spec.repeated
    return False


def positions_read(step: Step, dims: Sizes) -> npt.NDArray[np.int64] | None:
    """Of a step that moves whole positions: which one of the operand, of ``dims``, each of the result is.

    None if channels are moved, positions are filled, or the result is read in another way than the operand.
    """
    if step.view != step.result_view:
        return None
    channel_axis = 1 if step.view == "image" else len(dims) - 1
    own = [size for axis, size in enumerate(dims) if axis != channel_axis]
    numbers = np.arange(math.prod(own)).reshape(own)
    match step.spec:
        case PixelCopy(height=rows, width=columns, follows=False):
            ys, xs = np.array(rows.sources(dims[2])), np.array(columns.sources(dims[3]))
            if min(ys.min(initial=0), xs.min(initial=0)) < 0:
                return None
            return numbers[:, ys][:, :, xs].reshape(-1)
        case Transposed(order=order) if order[channel_axis] == channel_axis:
            kept = [axis - (axis > channel_axis) for axis in order if axis != channel_axis]
            return numbers.transpose(kept).reshape(-1)
        case Sliced(ranges=ranges, drops=False) if all(taken.axis != channel_axis for taken in ranges):
            for taken in ranges:
                axis = taken.axis - (taken.axis > channel_axis)
                numbers = numbers.take(taken.places(numbers.shape[axis]), axis=axis)
            return numbers.reshape(-1)
    return None


def position_copy(positions: npt.NDArray[np.int64], own: Shape, made: Shape, isa: str) -> tuple[_kernels.Op, Shape]:
    """The operator that copies whole positions of quads, and the shape of its operand.

    A quad is a word, and blocks of sixteen positions lie as those of sixteen rows of floats do.
    """
    quads = quads_of(1, own[1])
    source, target = ((shape[0] * shape[2] * shape[3], quads, 1, 1) for shape in (own, made))
    places = positions // LANES * (LANES * quads) + positions % LANES
    op = _kernels.Rearrange(
        places, LANES * np.arange(quads), source=source, target=target, first_channel=0, source_layout="images16",
        target_layout="images16", isa=isa,
    )  # fmt: skip
    return op, source


def _are_same_quads(own: Shape, wanted: Shape) -> bool:
    """Whether quads of a value in one shape are those in another: as many channels of as many pixels."""
    return own[:2] == wanted[:2] and own[2] * own[3] == wanted[2] * wanted[3]
