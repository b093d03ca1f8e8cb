"""Concat and Split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sift_onnx.training.host import ints
from sift_onnx.training.registry import kernel

__all__ = ["concat", "split"]


@kernel("Concat", since=4)
def concat(*parts: Tensor, axis: int) -> Tensor:
    """Tensors one after the other along an axis."""
    return torch.cat(parts, axis)


@kernel("Split", since=2, host=(1,))
def split(
    x: Tensor,
    sizes: Any = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    split: Sequence[int] | None = None,
    outputs: int,
) -> tuple[Tensor, ...]:
    """Pieces of the given sizes, or of equal ones, the last of which may be smaller."""
    sizes = sizes if sizes is not None else split
    if sizes is not None:
        return torch.split(x, ints(sizes), axis)
    return torch.split(x, -(-x.shape[axis] // (num_outputs or outputs)), axis)
