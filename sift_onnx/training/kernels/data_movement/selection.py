"""Choices whose outputs' sizes depend on values, or that sort."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sift_onnx.training.host import ints
from sift_onnx.training.registry import kernel

__all__: list[str] = []


@kernel("TopK", since=10, host=(1,))
def top_k(
    x: Tensor, k: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1, outputs: int = 2
) -> tuple[Tensor, ...]:
    """The largest or smallest ``k`` along an axis, and where they are; of equal ones the first."""
    values, where = torch.sort(x, dim=axis, descending=bool(largest), stable=True)
    count = ints(k)[0]
    return values.narrow(axis, 0, count), where.narrow(axis, 0, count)


@kernel("NonZero", since=9)
def non_zero(x: Tensor) -> Tensor:
    return (x if x.dim() else x.reshape(1)).nonzero().T


@kernel("Unique", since=11)
def unique(x: Tensor, *, axis: int | None = None, sorted: int = 1, outputs: int = 1) -> tuple[Tensor, ...]:
    """Distinct elements or slices, in order of value or of first appearance; first positions, inverse and counts."""
    slices = x.reshape(-1) if axis is None else x
    along = 0 if axis is None else axis
    found, inverse, counts = torch.unique(slices, return_inverse=True, return_counts=True, dim=along)
    positions = torch.arange(inverse.numel(), device=x.device)
    first = positions.new_full((counts.numel(),), inverse.numel()).scatter_reduce(0, inverse, positions, "amin")
    if not sorted:
        order = first.argsort()
        rank = torch.empty_like(order).scatter(0, order, torch.arange(order.numel(), device=x.device))
        found, first, counts, inverse = found.index_select(along, order), first[order], counts[order], rank[inverse]
    return found, first, inverse, counts
