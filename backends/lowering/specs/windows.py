"""Sliding windows, and what pools them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sift_onnx.backends.lowering.dims import Dims, window

__all__ = ["Geometry", "Pads", "Pair", "Pool"]

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]


@dataclass(frozen=True)
class Geometry:
    """A sliding window; ``pads`` are top, left, bottom, right."""

    kernel: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)

    def padded(self, pads: Pads) -> Geometry:
        """With more pixels on each side."""
        top, left, bottom, right = (a + b for a, b in zip(self.pads, pads, strict=True))
        return replace(self, pads=(top, left, bottom, right))

    def positions(self, dims: Dims, ceil_mode: bool = False) -> Dims:
        """Height and width of the result for an operand of ``dims`` = (n, c, h, w)."""
        top, left, bottom, right = self.pads
        pads = ((top, bottom), (left, right))
        return tuple(
            window(dims[2 + i], self.kernel[i], self.stride[i], self.dilation[i], pads[i], ceil_mode) for i in range(2)
        )


@dataclass(frozen=True)
class Pool:
    """Maximum or mean of a sliding window."""

    kind: Literal["max", "average"]
    geometry: Geometry
    ceil_mode: bool = False
    count_include_pad: bool = False
