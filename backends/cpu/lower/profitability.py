"""Whether a region is faster in the kernels than in onnxruntime, before anything has run.

Only layers with weights count: around them, both sides take the same time, but for what crosses the border.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sift_onnx.backends.cpu.lower.weights import SPARSE_BELOW
from sift_onnx.backends.lowering.dims import Dim, Dims
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import Conv, Matmul, result_dims

__all__ = ["is_sparse", "why_not_profitable"]

# GFLOP/s per core, of non-zeros: the middle of what ResNet stages reach.
_SPARSE_GFLOPS = 75.0
_PAIRED_GFLOPS = 95.0
_OWN_DENSE_GFLOPS = 95.0
_DENSE_GFLOPS = 95.0
_PAIRED_ABOVE = 0.18
_BORDER_SECONDS = 20e-6
_BORDER_BYTES_PER_SECOND = 4e9
# Sizes that only a run knows: one image or sequence, of a length that is usual.
_UNKNOWN_SIZE = 128


def is_sparse(step: Step) -> bool:
    """Whether the step has weights of which enough are zero."""
    return isinstance(step.spec, (Conv, Matmul)) and step.spec.weights.density <= SPARSE_BELOW


def why_not_profitable(
    steps: Sequence[Step], dims: Mapping[str, Dims], inputs: Sequence[str], outputs: Sequence[str], batch: str | None
) -> str:
    """Why a region is left to onnxruntime; empty if it is not.

    Args:
        steps: of the region.
        dims: sizes of all of its values.
        inputs: values that enter it.
        outputs: values that leave it.
        batch: symbol of the batch, which is taken as 1.
    """
    if not any(is_sparse(step) for step in steps):
        return "no sparse layer near it runs in the kernels"
    estimates = [_estimate(step, dims, batch) for step in steps]
    # Masks and targets of reshapes are not among them: they keep their layout, and their sizes are often unknown.
    itemsizes = {name: step.dtype.itemsize for step in steps for name in (*step.inputs, step.output)}
    crossing = [name for name in (*inputs, *outputs) if name in itemsizes]
    nbytes = sum(itemsizes[name] * math.prod(_size(dim, batch) for dim in dims[name]) for name in crossing)
    border = _BORDER_SECONDS + nbytes / _BORDER_BYTES_PER_SECOND
    kernels = sum(own for own, _ in estimates)
    dense = sum(other for _, other in estimates)
    if kernels + border < dense:
        return ""
    return (
        f"its region has sparse layers, but would take {1e3 * (kernels + border):.3g} ms in the kernels against "
        f"{1e3 * dense:.3g} ms (estimates for batch 1)"
    )


def _estimate(step: Step, dims: Mapping[str, Dims], batch: str | None) -> tuple[float, float]:
    """Seconds in the kernels and in onnxruntime."""
    if not isinstance(step.spec, (Conv, Matmul)):
        return 0.0, 0.0
    weights = step.spec.weights
    sizes = [_size(dim, batch) for dim in result_dims(step.spec, dims[step.inputs[0]])]
    positions = math.prod(sizes) // weights.rows
    density = weights.density
    rate = _PAIRED_GFLOPS if density > _PAIRED_ABOVE else _SPARSE_GFLOPS
    if density > SPARSE_BELOW:
        own = 2e-9 * weights.size * positions / _OWN_DENSE_GFLOPS
    else:
        own = 2e-9 * weights.nnz * positions / rate
    return own, 2e-9 * weights.size * positions / _DENSE_GFLOPS


def _size(dim: Dim, batch: str | None) -> int:
    if isinstance(dim, int):
        return dim
    if dim == batch:
        return 1
    if isinstance(dim, str):
        return _UNKNOWN_SIZE
    match dim:
        case ("product", int(factor), *symbols):
            return factor * math.prod(_size(symbol, batch) for symbol in symbols)
        case ("quotient", total, part):
            return _size(total, batch) // max(_size(part, batch), 1)
        case ("window", size, int(stride), int(pads), _):
            return (_size(size, batch) + pads) // stride + 1
    return _UNKNOWN_SIZE
