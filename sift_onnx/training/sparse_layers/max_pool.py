"""Maximum pooling of images in lanes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sift_onnx.training.compilation import never_compiled
from sift_onnx.training.kernels.spatial import pooling
from sift_onnx.training.sparse_layers.kernels import CPU, empty, pool, runs_on_kernels
from sift_onnx.training.sparse_layers.lanes import Lanes, from_lanes, image_lanes

__all__ = ["max_pool"]

# Places in a window are counted in bytes.
_MOST_TAPS = 255


@never_compiled
def max_pool(x: Lanes, *, attributes: Mapping[str, Any]) -> Lanes:
    """Maximum over windows of images.

    Args:
        x: images of two spatial axes; others are pooled by torch.
        attributes: of ONNX's MaxPool.
    """
    window = pooling.settled_window(x.shape, **attributes)
    taps = 1
    for extent in window.kernel:
        taps *= extent
    if len(x.shape) != 4 or not runs_on_kernels(x.data) or taps > _MOST_TAPS:
        return image_lanes(pooling.max_pool(from_lanes(x), **attributes)[0])
    geometry = {"kernel": window.kernel, "stride": window.strides, "dilation": window.dilations, "pads": window.pads}
    data: Tensor = _MaxPool.apply(x.data, x.kernel_shape, geometry)  # type: ignore[no-untyped-call]
    return x.with_data(data)


def _output_size(size: int, pads: int, kernel: int, stride: int, dilation: int) -> int:
    return (size + pads - dilation * (kernel - 1) - 1) // stride + 1


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: tuple[int, int, int, int], geometry: dict[str, Any]) -> Tensor:
        x = x.contiguous()
        pads = geometry["pads"]
        sizes = [
            _output_size(
                shape[2 + i],
                pads[i] + pads[2 + i],
                geometry["kernel"][i],
                geometry["stride"][i],
                geometry["dilation"][i],
            )
            for i in range(2)
        ]
        out = empty(*x.shape[:2], *sizes, x.shape[4])
        taps = torch.empty(out.shape, dtype=torch.uint8)
        CPU.max_pool_forward(pool().kernels, shape, x.detach(), out, taps, **geometry)
        ctx.save_for_backward(taps)
        ctx.lanes_shape, ctx.shape, ctx.geometry = x.shape, shape, geometry
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        (taps,) = ctx.saved_tensors
        dx = empty(*ctx.lanes_shape)
        CPU.max_pool_backward(pool().kernels, ctx.shape, dy.contiguous(), taps, dx, **ctx.geometry)
        return dx, None, None
