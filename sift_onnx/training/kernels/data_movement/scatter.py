"""Writing elements at positions."""

from __future__ import annotations

import torch
from torch import Tensor

from sift_onnx.errors import UnsupportedError
from sift_onnx.training.registry import kernel

__all__: list[str] = []

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
