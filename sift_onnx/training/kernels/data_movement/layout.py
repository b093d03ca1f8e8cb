"""Operators that move elements without changing them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sift_onnx.training.host import ints
from sift_onnx.training.registry import kernel

__all__: list[str] = []


@kernel("Identity")
def identity(x: Any) -> Any:
    return x


@kernel("Reshape", since=5, host=(1,))
def reshape(x: Tensor, shape: Any, *, allowzero: int = 0) -> Tensor:
    sizes = ints(shape)
    return x.reshape([x.shape[i] if n == 0 and not allowzero else n for i, n in enumerate(sizes)])


@kernel("Flatten", since=9)
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    axis = axis + x.dim() if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@kernel("Squeeze", host=(1,))
def squeeze(x: Tensor, axes: Any = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(ints(axes))


@kernel("Unsqueeze", host=(1,))
def unsqueeze(x: Tensor, axes: Any) -> Tensor:
    chosen = ints(axes)
    rank = x.dim() + len(chosen)
    for axis in sorted(axis % rank for axis in chosen):
        x = x.unsqueeze(axis)
    return x


@kernel("Transpose")
def transpose(x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    return x.permute(tuple(perm) if perm is not None else tuple(reversed(range(x.dim()))))


@kernel("Expand", since=8, host=(1,))
def expand(x: Tensor, shape: Any) -> Tensor:
    return x.expand(np.broadcast_shapes(x.shape, tuple(ints(shape))))


@kernel("Tile", since=6, host=(1,))
def tile(x: Tensor, repeats: Any) -> Tensor:
    return x.repeat(ints(repeats))


@kernel("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    if mode == "CRD":
        return x.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3).reshape(n, c // b**2, h * b, w * b)
    return x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // b**2, h * b, w * b)


@kernel("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    order = (0, 1, 3, 5, 2, 4) if mode == "CRD" else (0, 3, 5, 1, 2, 4)
    return x.reshape(n, c, h // b, b, w // b, b).permute(order).reshape(n, c * b**2, h // b, w // b)


@kernel("ReverseSequence", since=10)
def reverse_sequence(x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    """The first ``lengths[b]`` steps of each batch item in reverse; the others stay."""
    items = x.movedim((batch_axis, time_axis), (0, 1))
    steps = torch.arange(items.shape[1], device=x.device)
    ends = lengths.to(x.device)[:, None]
    order = torch.where(steps < ends, ends - 1 - steps, steps)
    order = order.reshape(*order.shape, *(1,) * (items.dim() - 2)).expand(items.shape)
    return items.gather(1, order).movedim((0, 1), (batch_axis, time_axis))
