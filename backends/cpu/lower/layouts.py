"""How the kernels lay tensors out: `planes` as ONNX does, `images16` with sixteen images or rows in the lanes."""

from __future__ import annotations

from typing import Literal

__all__ = ["LANES", "LANES_PAY", "Layout"]

Layout = Literal["planes", "images16"]
LANES = 16
# From this many images or rows on, sixteen lanes of which some are idle take less time than one by one.
LANES_PAY = 12
