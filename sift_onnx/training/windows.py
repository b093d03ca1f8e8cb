"""Padding and subsampling of spatial axes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

__all__ = ["pad", "subsampled"]

_ONEDNN_BLOCK = 16


def pad(x: Tensor, pads: Sequence[int], value: float = 0.0) -> Tensor:
    """Pad the last axes of ``x`` with a constant; ``pads`` are all begins, then all ends."""
    rank = len(pads) // 2
    return functional.pad(x, [n for i in reversed(range(rank)) for n in (pads[i], pads[rank + i])], value=value)


def subsampled(x: Tensor, weight: Sequence[int], strides: Sequence[int]) -> tuple[Tensor, tuple[int, ...]]:
    """The input and strides of a convolution without padding, as torch computes them safely.

    A 1x1 kernel with strides reads every few values of its input. Where the channels of a channels-last input are fewer
    than a block of oneDNN's, its gradient of the weight writes beyond its buffer (oneDNN issue 6035; torch 2.13 and
    2.14). The values that are read, with strides of 1, give the same result by another kernel.

    Args:
        x: ``[n, c, spatial axes]``.
        weight: the weight's shape, output channels x input channels per group x kernel.
        strides: of the spatial axes.

    Returns:
        The input, or a view of it, and the strides to use.
    """
    if max(strides) == 1 or max(weight[2:]) > 1 or weight[1] >= _ONEDNN_BLOCK:
        return x, tuple(strides)
    steps = [slice(None), slice(None), *(slice(None, None, step) for step in strides)]
    return x[tuple(steps)], (1,) * len(strides)
