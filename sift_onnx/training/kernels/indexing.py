"""Elements at positions: read, written, or chosen by their values."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sift_onnx.errors import UnsupportedError
from sift_onnx.training.host import ints
from sift_onnx.training.registry import kernel

__all__: list[str] = []


@kernel("Gather", host=(1,))
def gather(x: Tensor, indices: Any, *, axis: int = 0) -> Tensor:
    """Slices of ``x`` at ``indices`` of one axis, in place of that axis."""
    if isinstance(indices, int):
        return x.select(axis, indices)
    where = torch.as_tensor(indices, device=x.device).to(torch.int64)
    length = x.shape[axis]
    where = torch.where(where < 0, where + length, where)
    if axis == 0 and x.dim() == 2 and x.dtype.is_floating_point:
        return functional.embedding(where, x)
    axis = axis % x.dim()
    return x.index_select(axis, where.reshape(-1)).reshape(*x.shape[:axis], *where.shape, *x.shape[axis + 1 :])


@kernel("GatherElements", since=11)
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return torch.gather(x, axis, indices.to(torch.int64) % x.shape[axis])


@kernel("GatherND", since=11)
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """Slices at index vectors, the last axis of ``indices``; the first ``batch_dims`` axes go together."""
    depth = indices.shape[-1]
    batch = x.shape[:batch_dims]
    flat = x.reshape(math.prod(batch), *x.shape[batch_dims:])
    where = indices.to(torch.int64).reshape(math.prod(batch), -1, depth)
    rows = torch.arange(math.prod(batch), device=x.device)[:, None]
    picked = flat[(rows, *where.unbind(-1))]
    return picked.reshape(*indices.shape[:-1], *x.shape[batch_dims + depth :])


@kernel("Slice", since=10, host=(1, 2, 3, 4))
def slice_(x: Tensor, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Tensor:
    first, last = ints(starts), ints(ends)
    chosen = ints(axes) if axes is not None else list(range(len(first)))
    by = ints(steps) if steps is not None else [1] * len(first)
    for axis, begin, end, step in zip(chosen, first, last, by, strict=True):
        size = x.shape[axis]
        if step > 0:
            begin, end = (min(max(n + size if n < 0 else n, 0), size) for n in (begin, end))
            x = x[(slice(None),) * (axis % x.dim()) + (slice(begin, max(begin, end), step),)]
        else:
            begin, end = (min(max(n + size if n < 0 else n, -1), size - 1) for n in (begin, end))
            x = x.index_select(axis, torch.arange(begin, min(begin, end), step, device=x.device))
    return x


@kernel("Compress", since=9)
def compress(x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    where = condition.nonzero().reshape(-1)
    return x.reshape(-1)[where] if axis is None else x.index_select(axis, where)


@kernel("OneHot", since=9, host=(1,))
def one_hot(indices: Tensor, depth: Any, values: Tensor, *, axis: int = -1) -> Tensor:
    """``values[1]`` where an index points along the new axis, ``values[0]`` elsewhere, or everywhere out of range."""
    count = ints(depth)[0]
    whole = indices.to(torch.int64)
    whole = torch.where((whole < 0) & (whole >= -count), whole + count, whole)
    axis = axis % (indices.dim() + 1)
    steps = torch.arange(count, device=indices.device).reshape(-1, *(1,) * (indices.dim() - axis))
    return torch.where(whole.unsqueeze(axis) == steps, values[1], values[0])


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@kernel("ScatterElements", "Scatter", since=9)
def scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Tensor:
    where = indices.to(torch.int64) % x.shape[axis]
    if reduction == "none":
        return x.scatter(axis, where, updates)
    return x.scatter_reduce(axis, where, updates, _REDUCTIONS[reduction])


@kernel("ScatterND", since=11)
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    """``x`` with slices at index vectors, the last axis of ``indices``, replaced by or combined with ``updates``."""
    depth = indices.shape[-1]
    strides = [1] * depth
    for i in reversed(range(depth - 1)):
        strides[i] = strides[i + 1] * x.shape[i + 1]
    sizes = torch.tensor(x.shape[:depth], device=x.device)
    where = (indices.to(torch.int64) % sizes * torch.tensor(strides, device=x.device)).sum(-1).reshape(-1)
    flat = x.reshape(-1, *x.shape[depth:])
    values = updates.reshape(where.shape[0], *flat.shape[1:])
    if reduction == "none":
        return flat.index_copy(0, where, values).reshape(x.shape)
    if reduction == "add":
        return flat.index_add(0, where, values).reshape(x.shape)
    wide = where.reshape(-1, *(1,) * (flat.dim() - 1)).expand(values.shape)
    return flat.scatter_reduce(0, wide, values, _REDUCTIONS[reduction]).reshape(x.shape)


@kernel("TensorScatter", since=24)
def tensor_scatter(
    past: Tensor, update: Tensor, write_indices: Tensor | None = None, *, axis: int = -2, mode: str = "linear"
) -> Tensor:
    """A cache with ``update`` written from ``write_indices[batch]`` on along one axis."""
    if mode not in ("linear", "circular"):
        raise UnsupportedError(f"mode {mode!r} is unknown")
    axis = axis % past.dim()
    starts = write_indices if write_indices is not None else torch.zeros(past.shape[0], dtype=torch.int64)
    steps = torch.arange(update.shape[axis], device=past.device)
    where = starts.to(past.device).reshape(-1, 1) + steps
    if mode == "circular":
        where = where % past.shape[axis]
    shape = [1] * past.dim()
    shape[0], shape[axis] = where.shape
    return past.scatter(axis, where.reshape(shape).expand(update.shape), update)


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
