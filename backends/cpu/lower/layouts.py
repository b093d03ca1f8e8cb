"""How the kernels lay tensors out.

Floats lie in `planes` as ONNX has them, or in `images16` with sixteen images or rows in the lanes. Bytes lie in `bytes`
as ONNX has them, or in `quads` with sixteen positions in the lanes, each with four channels; `dynamic_quads` have the
scale that a run has found in front, and `float_quads` have floats behind them, sixteen positions of a channel side by
side. Places of values lie in `integers`, as ONNX has them.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["LANES", "LANES_PAY", "Layout"]

Layout = Literal["planes", "images16", "bytes", "quads", "dynamic_quads", "float_quads", "integers"]
LANES = 16
# From this many images or rows on, sixteen lanes of which some are idle take less time than one by one.
LANES_PAY = 12
