"""A training step: forward, gradient of the input, gradient of the weights, and the traffic of mask updates.

- The gradient of the input is a product with the transposed matrix, whose rows are the input features.
- The gradient of the weights is a sampled dense-dense product: ``dW[o, k] = sum_t dY[o, t] X[k, t]`` at the mask only.
  Row ``o`` of ``dY`` is broadcast along the grid rows, each core forms a dot product per non-zero of its features, and
  the scalars are summed up along the grid columns and leave the wafer.
- Weights, optimizer and masks live off the wafer (the vendor's weight streaming). An update of the mask moves the
  indices and values of what is dropped and grown; growing by gradient (RigL) also takes the gradient of every weight,
  active or not, in that step. Both are shared out over the steps between two updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from sift_onnx.backends.dataflow.workloads.pattern import FullPattern
from sift_onnx.backends.dataflow.workloads.workload import SparseProduct, WeightlessOp, Workload
from sift_onnx.errors import UsageError

__all__ = ["MaskUpdates", "backward_weightless", "gradient_products", "mask_update_bytes"]


@dataclass(frozen=True)
class MaskUpdates:
    """How often masks change.

    Attributes:
        every: training steps from one update to the next (cstorch: ``freq``; 100 is RigL's).
        drop_fraction: share of the active weights that is dropped, and grown elsewhere (0.3 is RigL's first one).
        grow: ``random`` (SET), or ``gradient`` (RigL), which needs the gradient of every weight.

    Raises:
        UsageError: a value out of its range.
    """

    every: int = 100
    drop_fraction: float = 0.3
    grow: Literal["random", "gradient"] = "random"

    def __post_init__(self) -> None:
        if not 1 <= self.every < float("inf"):
            raise UsageError(f"masks are updated every {self.every} steps; it must be at least 1")
        if not 0 <= self.drop_fraction <= 1:
            raise UsageError(f"a drop fraction of {self.drop_fraction}; it must be between 0 and 1")
        if self.grow not in ("random", "gradient"):
            raise UsageError(f"weights cannot be grown by {self.grow!r}; choose random or gradient")


def gradient_products(product: SparseProduct) -> Iterator[SparseProduct]:
    """The backward products of a layer: gradient of its input, where anything needs it, and of its weight."""
    if product.needs_input_gradient:
        yield replace(product, pattern=replace(product.pattern, map=product.gradient_map), step="input_gradient")
    yield replace(product, step="weight_gradient")


def dense_gradient(product: SparseProduct) -> SparseProduct:
    """The gradient of every weight of a layer, active or not."""
    return replace(product, pattern=FullPattern(product.pattern.map), step="weight_gradient")


def mask_update_bytes(product: SparseProduct, updates: MaskUpdates, index_bytes: float, value_bytes: float) -> float:
    """Bytes over the wafer's edge that mask updates add to a step, on average."""
    moved = 2 * updates.drop_fraction * product.pattern.nnz
    return moved * (index_bytes + value_bytes) / updates.every if product.is_sparse else 0.0


def backward_weightless(workload: Workload) -> Iterable[WeightlessOp]:
    """The backward pass of work without weights, last one first."""
    for op in reversed(workload.weightless):
        # A product of two activations has a gradient for each; other work is passed through once.
        factor = 2 if op.kind == "product" else 1
        yield replace(op, operations=op.operations * factor, elements_in=op.elements_in * factor, step="input_gradient")
