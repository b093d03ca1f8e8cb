"""Operators on quantized tensors. Of these, "x" and "y" are bytes; their zero points are bytes too.

Sums of a layer are 32-bit integers: ``sum = bias + Σ (x - x_zero) * weight``, and a sum stands for ``scale * sum``.
A layer's result is either a float, ``activation(scale * sum + shift)``, or bytes,
``clamp(round(sum * (scale / y.scale)) + y.zero)``, rounded half to even, as onnxruntime's QLinearConv has it. Where the
model makes floats of sums and quantizes those, that is ``clamp(round(scale * sum / y.scale) + y.zero)``, and the float
is rounded too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.lowering.quantization import HIGHEST, IntegerMatrix, Quantization
from sift_onnx.backends.lowering.specs.activations import NO_ACTIVATION, Activation
from sift_onnx.backends.lowering.specs.windows import Geometry, Pair, Pool
from sift_onnx.backends.lowering.weights import Floats

__all__ = [
    "ALL_BYTES",
    "ByteShift",
    "ByteTable",
    "Dequantize",
    "DynamicQuantize",
    "Quantize",
    "QuantizedAdd",
    "QuantizedAverage",
    "QuantizedConv",
    "QuantizedMatmul",
    "QuantizedMean",
]

ALL_BYTES: Pair = (0, HIGHEST)


@dataclass(frozen=True)
class Quantize:
    """Floats to bytes."""

    y: Quantization


@dataclass(frozen=True)
class Dequantize:
    """Bytes to floats."""

    x: Quantization


@dataclass(frozen=True)
class DynamicQuantize:
    """Floats to bytes with the scale and zero point that suit all of them, as DynamicQuantizeLinear has it."""


@dataclass(frozen=True)
class QuantizedAdd:
    """Bytes of a + b."""

    a: Quantization
    b: Quantization
    y: Quantization
    clamp: Pair = ALL_BYTES


@dataclass(frozen=True)
class ByteShift:
    """Bytes of a + shift, a number for each channel.

    Attributes:
        a: of the operand.
        shift: [channels].
        y: of the result.
        clamp: lowest and highest byte of the result.
    """

    a: Quantization
    shift: Floats = field(repr=False)
    y: Quantization
    clamp: Pair = ALL_BYTES

    @property
    def factor(self) -> float:
        """What a byte is multiplied by, before :attr:`rests` are added."""
        return float(np.float32(self.a.scale) / np.float32(self.y.scale))

    @property
    def rests(self) -> Floats:
        """What else a byte of the result is the rounded sum of, [channels]."""
        shifts = self.shift.astype(np.float64) / self.y.scale
        return (shifts + self.y.zero - self.factor * self.a.zero).astype(np.float32)


@dataclass(frozen=True)
class QuantizedMatmul:
    """x @ weights.T, x [..., columns]; see the head of the file.

    Attributes:
        weights: without zero point, [rows][columns].
        scale: of a sum, [rows]; of the weights alone where x is dynamic.
        x_zero: byte; None where x is dynamic: floats, of which :class:`DynamicQuantize` makes bytes with a scale.
        bias: int32 [rows] that is added to the sums.
        shift: [rows] that is added to a float result.
        is_added: whether a second operand, of floats, is added to a float result before its activation.
        activation: of a float result.
        y: of a result of bytes; None makes floats.
        is_divided: whether the model makes floats of sums, by nodes after ConvInteger or MatMulInteger.
        clamp: lowest and highest byte of the result.
        added: sum of the result, which is not clamped then, and a second operand of bytes.
        shifted: what becomes of the result, which is not clamped then.
    """

    weights: IntegerMatrix
    scale: Floats = field(repr=False)
    x_zero: int | None
    bias: npt.NDArray[np.int32] | None = field(default=None, repr=False)
    shift: Floats | None = field(default=None, repr=False)
    is_added: bool = False
    activation: Activation = NO_ACTIVATION
    y: Quantization | None = None
    is_divided: bool = False
    clamp: Pair = ALL_BYTES
    added: QuantizedAdd | None = None
    shifted: ByteShift | None = None


@dataclass(frozen=True)
class QuantizedConv(QuantizedMatmul):
    """Convolution of x with weights [rows][channels of a group][taps]; padding is with ``x_zero``."""

    geometry: Geometry = field(default_factory=lambda: Geometry((1, 1)))
    groups: int = 1

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is convolved with weights of its own."""
        return self.groups > 1 and self.weights.channels == 1 and self.groups == self.weights.rows


@dataclass(frozen=True)
class ByteTable:
    """A byte for each byte of x: any function of one operand.

    Attributes:
        values: uint8 [256].
    """

    values: npt.NDArray[np.uint8] = field(repr=False)

    def then(self, other: ByteTable) -> ByteTable:
        """One table for this one and ``other`` after it."""
        return ByteTable(other.values[self.values])

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing."""
        return bool(np.array_equal(self.values, np.arange(HIGHEST + 1)))


@dataclass(frozen=True)
class QuantizedAverage:
    """Bytes of the means of a window."""

    pool: Pool
    x: Quantization
    y: Quantization


@dataclass(frozen=True)
class QuantizedMean:
    """Bytes of the mean over height and width; ``keep_axes`` leaves one position."""

    x: Quantization
    y: Quantization
    keep_axes: bool = True
