"""How the kernels lay tensors out: `planes` as ONNX does, `images16` with sixteen images or rows in the lanes."""

from __future__ import annotations

from typing import Literal

__all__ = ["LANES", "Layout"]

Layout = Literal["planes", "images16"]
LANES = 16
