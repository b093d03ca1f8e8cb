"""Maximum pooling of images in lanes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sift_onnx.training.compilation import never_compiled
from sift_onnx.training.kernels.spatial import pooling
from sift_onnx.training.sparse_layers.kernels import CPU, Window, empty, pool, runs_on_kernels
from sift_onnx.training.sparse_layers.lanes.tensors import Lanes, from_lanes, image_lanes

__all__ = ["max_pool", "pool_window", "pooled_sizes"]

# Places in a window are counted in bytes.
_MOST_TAPS = 255


@never_compiled
def max_pool(x: Lanes, *, attributes: Mapping[str, Any]) -> Lanes:
    """Maximum over windows of images.

    Args:
        x: images of two spatial axes; others are pooled by torch.
        attributes: of ONNX's MaxPool.
    """
    window = pool_window(x, attributes)
    if window is None:
        return image_lanes(pooling.max_pool(from_lanes(x), **attributes)[0])
    data: Tensor = _MaxPool.apply(x.data, x.kernel_shape, window)  # type: ignore[no-untyped-call]
    return x.with_data(data)


def pool_window(x: Lanes, attributes: Mapping[str, Any]) -> Window | None:
    """The window of a pooling; None if torch has to pool."""
    found = pooling.settled_window(x.shape, **attributes)
    if len(x.shape) != 4 or not runs_on_kernels(x.data) or math.prod(found.kernel) > _MOST_TAPS:
        return None
    top, left, bottom, right = found.pads
    return Window(_pair(found.kernel), _pair(found.strides), _pair(found.dilations), (top, left, bottom, right))


def pooled_sizes(shape: tuple[int, int, int, int], window: Window) -> list[int]:
    """Height and width of the output for an input ``(n, c, h, w)``."""
    return [
        (shape[2 + i] + window.pads[i] + window.pads[2 + i] - window.dilation[i] * (window.kernel[i] - 1) - 1)
        // window.stride[i]
        + 1
        for i in range(2)
    ]


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: tuple[int, int, int, int], window: Window) -> Tensor:
        x = x.contiguous()
        out = empty(*x.shape[:2], *pooled_sizes(shape, window), x.shape[4])
        taps = torch.empty(out.shape, dtype=torch.uint8)
        CPU.max_pool_forward(pool().kernels, shape, x.detach(), out, taps, **asdict(window))
        ctx.save_for_backward(taps)
        ctx.lanes_shape, ctx.shape, ctx.window = x.shape, shape, window
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        (taps,) = ctx.saved_tensors
        dx = empty(*ctx.lanes_shape)
        CPU.max_pool_backward(pool().kernels, ctx.shape, dy.contiguous(), taps, dx, **asdict(ctx.window))
        return dx, None, None


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    height, width = sizes
    return height, width
