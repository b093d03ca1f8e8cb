"""Which layers multiply by all of their weights, zeros too, and which of these run Winograd's algorithm."""

from __future__ import annotations

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.lowering.specs import Conv, Pool
from sift_onnx.backends.lowering.weights import WeightMatrix

__all__ = ["multiplies_zeros", "pools_at_once", "runs_winograd"]

# What the kernels of Winograd's algorithm take: two groups of rows.
_LEAST_WINOGRAD_ROWS = 16


def multiplies_zeros(weights: WeightMatrix) -> bool:
    """Whether weights are too dense for sparse kernels to gain from their zeros."""
    return weights.density > _kernels.SparseWeights.DENSE_ABOVE


def runs_winograd(spec: Conv) -> bool:
    """Whether Winograd's algorithm does it with fewer multiply-adds: dense, of few channels, with 3x3 or 4x4 taps."""
    weights, geometry = spec.weights, spec.geometry
    return (
        multiplies_zeros(weights)
        and weights.rows >= _LEAST_WINOGRAD_ROWS
        and _kernels.Winograd.suits(
            weights.columns,
            kernel=geometry.kernel,
            stride=geometry.stride,
            dilation=geometry.dilation,
            groups=spec.groups,
        )
    )


def pools_at_once(conv: Conv, pool: Pool) -> bool:
    """Whether an operator does both, the convolution by Winograd's algorithm."""
    geometry = pool.geometry
    begins, ends = geometry.pads[:2], geometry.pads[2:]
    return (
        pool.kind == "max"
        and geometry.dilation == (1, 1)
        and all(max(pads) < size for *pads, size in zip(begins, ends, geometry.kernel, strict=True))
        and runs_winograd(conv)
    )
