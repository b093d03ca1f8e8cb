"""Reading elements at positions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

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
