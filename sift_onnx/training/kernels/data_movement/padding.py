"""Padding, and cropping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sift_onnx.training.host import ints, number
from sift_onnx.training.registry import kernel
from sift_onnx.training.windows import pad as pad_with

__all__: list[str] = []


@kernel("Pad", since=11, host=(1, 2, 3))
def pad(x: Tensor, pads: Any, value: Any = None, axes: Any = None, *, mode: str = "constant") -> Tensor:
    """More elements at the beginning and the end of axes, or fewer where a number is negative."""
    amounts = ints(pads)
    chosen = [axis % x.dim() for axis in ints(axes)] if axes is not None else list(range(x.dim()))
    before, after = amounts[: len(chosen)], amounts[len(chosen) :]
    if mode == "constant":
        whole = [0] * (2 * x.dim())
        for i, axis in enumerate(chosen):
            whole[axis], whole[x.dim() + axis] = before[i], after[i]
        fill = 0 if value is None else number(value)
        return (
            pad_with(x.to(torch.uint8), whole, fill).to(torch.bool)
            if x.dtype == torch.bool
            else pad_with(x, whole, fill)
        )
    for i, axis in enumerate(chosen):
        positions = torch.arange(-before[i], x.shape[axis] + after[i], device=x.device)
        x = x.index_select(axis, _source(positions, x.shape[axis], mode))
    return x


def _source(positions: Tensor, size: int, mode: str) -> Tensor:
    """Which element stands at positions outside of ``0 .. size - 1``."""
    if mode == "edge":
        return positions.clamp(0, size - 1)
    if mode == "wrap" or size == 1:
        return positions % size
    period = 2 * (size - 1)
    folded = positions % period
    return torch.where(folded < size, folded, period - folded)


@kernel("CenterCropPad", since=18, host=(1,))
def center_crop_pad(x: Tensor, shape: Any, *, axes: Sequence[int] | None = None) -> Tensor:
    sizes = ints(shape)
    chosen = [axis % x.dim() for axis in axes] if axes is not None else list(range(x.dim()))
    whole = [0] * (2 * x.dim())
    for axis, size in zip(chosen, sizes, strict=True):
        difference = size - x.shape[axis]
        # The odd element is missing, or added, at the end.
        first = difference // 2 if difference >= 0 else -((-difference) // 2)
        whole[axis], whole[x.dim() + axis] = first, difference - first
    return pad_with(x, whole)
