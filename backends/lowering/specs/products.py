"""Products of two values that are both computed."""

from __future__ import annotations

from dataclasses import dataclass

from sift_onnx.backends.lowering.dims import Dims, broadcast

__all__ = ["BatchedMatmul", "dims_of_product"]


@dataclass(frozen=True)
class BatchedMatmul:
    """scale * x @ second, x [..., rows, depth] and second [..., depth, columns].

    The axes in front are those of a batch. One operand may lack some of them, or have one position where the other one
    has more.
    """

    scale: float = 1.0


def dims_of_product(first: Dims, second: Dims) -> Dims:
    """Sizes of the product of two values of two axes and more."""
    count = max(len(first), len(second))
    batches = ((1,) * (count - len(dims)) + dims[:-2] for dims in (first, second))
    return (*map(broadcast, *batches), first[-2], second[-1])
