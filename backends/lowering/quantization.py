"""How integers of a model stand for numbers: a value is ``scale * (stored - zero point)``.

Kernels hold quantized tensors as bytes from 0 to 255. Where the model has int8, they hold what is stored plus 128. The
zero point is 128 higher too, so that scale and values are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import array_of
from sift_onnx.weights.quads import live_quads, quads_of

__all__ = ["HIGHEST", "IntegerMatrix", "IntegerReading", "Quantization"]

# Of a byte.
HIGHEST = 255
_SHIFT = 128

Integers = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Quantization:
    """Of a tensor of activations.

    Attributes:
        scale: of one step, a float32.
        zero: the byte that stands for zero.
        is_signed: whether the model has int8.
    """

    scale: float
    zero: int
    is_signed: bool = False

    @classmethod
    def of(cls, scale: npt.NDArray[Any], zero: npt.NDArray[Any] | None) -> Quantization:
        """From what a model stores: a scale, and a zero point of uint8 or int8; None is 0 of uint8.

        Raises:
            ValueError: they are no scale and zero point of a whole tensor of bytes; the message says why.
        """
        stored = np.zeros((), np.uint8) if zero is None else zero
        if scale.dtype != np.float32 or stored.dtype not in (np.uint8, np.int8):
            raise ValueError(f"a scale of {scale.dtype}, a zero point of {stored.dtype}")
        if scale.size != 1 or stored.size != 1:
            raise ValueError("activations with a scale for each channel")
        number = float(scale.reshape(-1)[0])
        if not (np.isfinite(number) and number > 0):
            raise ValueError(f"a scale of {number}")
        is_signed = stored.dtype == np.int8
        return cls(number, int(stored.reshape(-1)[0]) + (_SHIFT if is_signed else 0), is_signed)

    def byte(self, value: float) -> int:
        """The byte that stands for ``value``, or is nearest to it; half to even, as onnxruntime rounds."""
        with np.errstate(over="ignore"):
            steps = np.rint(np.float32(value) / np.float32(self.scale))
        return int(np.clip(steps + np.float32(self.zero), 0, HIGHEST))

    def values(self) -> npt.NDArray[np.float32]:
        """What each of the 256 bytes stands for."""
        return (np.arange(HIGHEST + 1, dtype=np.float32) - np.float32(self.zero)) * np.float32(self.scale)

    def bytes_of(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """Nearest bytes of finite values, saturated."""
        steps = np.rint(values / np.float32(self.scale)) + np.float32(self.zero)
        return np.asarray(np.clip(steps, 0, HIGHEST), np.uint8)


@dataclass
class IntegerReading:
    """What is found when the integers are read; they may come from a file, and be large.

    Attributes:
        nnz: how many are not the zero point; None before they are read.
        quads: how many quads along the input features hold such a one; those with weights beyond int8 count twice.
    """

    nnz: int | None = None
    quads: int = 0


@dataclass(frozen=True)
class IntegerMatrix:
    """Constant integer weights, a row per output channel.

    Attributes:
        constant: of the model; int8 or uint8.
        rows: output channels.
        channels: input channels of a row.
        taps: weights per input channel.
        zero: zero points, [1] or [rows].
        transposed: the constant is [columns][rows], as MatMul has it.
        reading: shared by all that are made from this one.
    """

    constant: gs.Constant
    rows: int
    channels: int
    taps: int
    zero: npt.NDArray[np.int16] = field(repr=False)
    transposed: bool = False
    reading: IntegerReading = field(default_factory=IntegerReading, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Of the initializer."""
        return str(self.constant.name)

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.rows * self.channels * self.taps

    @property
    def nnz(self) -> int:
        """Weights that are not their zero point."""
        nnz = self.reading.nnz
        assert nnz is not None  # read() comes before
        return nnz

    @property
    def density(self) -> float:
        """Share of weights that are not their zero point."""
        return self.nnz / self.size if self.size else 1.0

    @property
    def quad_density(self) -> float:
        """Share of quads along the input channels that kernels cannot skip."""
        quads = quads_of(self.rows, self.channels, self.taps)
        return self.reading.quads / quads if quads else 1.0

    def values(self) -> npt.NDArray[np.int8] | npt.NDArray[np.int16]:
        """All weights with their zero point taken off, [rows][channels][taps]; int16 where they may be more than int8.

        Those of uint8 around a zero point far from 128 are.
        """
        stored = array_of(self.constant)
        shape = (self.rows, self.channels, self.taps)
        matrix = stored.reshape(-1, self.rows).T if self.transposed else stored.reshape(self.rows, -1)
        if stored.dtype == np.int8 and not self.zero.any():
            return np.ascontiguousarray(matrix.reshape(shape))
        if stored.dtype == np.uint8 and np.all(self.zero == _SHIFT):
            return np.ascontiguousarray((matrix ^ np.uint8(_SHIFT)).view(np.int8).reshape(shape))
        return np.ascontiguousarray((matrix.astype(np.int16) - self.zero.reshape(-1, 1)).reshape(shape))

    def read(self) -> None:
        """Count the weights that are not their zero point, and the quads of them."""
        if self.reading.nnz is not None:
            return
        values = self.values()
        self.reading.quads = live_quads(values != 0)
        if values.dtype == np.int16:
            self.reading.quads += live_quads((values < -_SHIFT) | (values >= _SHIFT))
        self.reading.nnz = int(np.count_nonzero(values))

    def released(self) -> IntegerMatrix:
        """Without the values: only what is known of them."""
        nothing = gs.Constant(self.name, np.empty(0, np.int8))
        reading = self.reading
        return IntegerMatrix(nothing, self.rows, self.channels, self.taps, self.zero, False, reading)
