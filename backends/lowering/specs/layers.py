"""Layers with constant weights."""

from __future__ import annotations

from dataclasses import dataclass

from sift_onnx.backends.lowering.specs.activations import NO_ACTIVATION, Activation
from sift_onnx.backends.lowering.specs.windows import Geometry, Pair, Pool
from sift_onnx.backends.lowering.weights import Floats, WeightMatrix

__all__ = ["Conv", "Depthwise", "LinearLayer", "Matmul"]


@dataclass(frozen=True)
class Conv:
    """pool(activation(conv(x) + bias + second)), pool and second not together.

    With a block, the channels of the result become the pixels of blocks as :class:`DepthToSpace` has it, without pool
    and second: a transposed convolution whose windows do not overlap.
    """

    weights: WeightMatrix
    bias: Floats | None
    geometry: Geometry
    groups: int = 1
    activation: Activation = NO_ACTIVATION
    pool: Pool | None = None
    block: Pair = (1, 1)


@dataclass(frozen=True)
class Matmul:
    """activation(x @ weights.T + bias + second), x [..., columns]."""

    weights: WeightMatrix
    bias: Floats | None
    activation: Activation = NO_ACTIVATION


@dataclass(frozen=True)
class Depthwise:
    """activation(depthwise convolution + bias)."""

    weights: WeightMatrix
    bias: Floats | None
    geometry: Geometry
    activation: Activation = NO_ACTIVATION


LinearLayer = Conv | Depthwise | Matmul
