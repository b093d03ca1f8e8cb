"""Batch normalization, ReLU and maximum pooling of images in lanes in one pass over memory, as networks begin.

What is normalized there is their largest tensor, and is not stored: the backward pass has the input of the
normalization, and, of each maximum, the place and the value that it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sift_onnx.training.compilation import never_compiled
from sift_onnx.training.kernels.normalization import BatchNormalization
from sift_onnx.training.sparse_layers.kernels import CPU, Window, empty, pool, runs_on_kernels
from sift_onnx.training.sparse_layers.lanes.batch_norm import (
    BatchStatistics,
    normalize,
    statistics_for,
    update_running,
    value_count,
)
from sift_onnx.training.sparse_layers.lanes.max_pool import max_pool, pool_window, pooled_sizes
from sift_onnx.training.sparse_layers.lanes.tensors import Lanes

__all__ = ["normalize_and_pool"]


@never_compiled
def normalize_and_pool(
    module: BatchNormalization,
    x: Lanes,
    scale: Tensor,
    shift: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    relu: bool,
    attributes: Mapping[str, Any],
) -> Lanes:
    """``max_pool(relu(batch_norm(x)))``; running statistics are updated in training mode.

    Args:
        module: that has the settings of the normalization.
        x: images.
        scale: per channel.
        shift: per channel.
        mean: running mean.
        variance: running variance.
        relu: whether negative numbers become zero.
        attributes: of ONNX's MaxPool.
    """
    window = pool_window(x, attributes)
    fits = all(runs_on_kernels(t) for t in (x.data, scale, shift, mean, variance))
    if window is None or not fits or not _all_have_pixels(window) or (module.training and value_count(x) == 1):
        normalized = normalize(module, x, scale, shift, mean, variance, relu=relu)
        return max_pool(normalized, attributes=attributes)
    found = statistics_for(module, mean, variance)
    data: Tensor = _NormalizeAndPool.apply(  # type: ignore[no-untyped-call]
        x.data, scale, shift, x.kernel_shape, window, module.epsilon, relu, found
    )
    if module.training:
        update_running(module, mean, variance, found, value_count(x))
    return x.with_data(data)


def _all_have_pixels(window: Window) -> bool:
    """Whether no window can lie in the padding alone."""
    pads, kernel = window.pads, window.kernel
    return window.dilation == (1, 1) and all(pads[i] < kernel[i] and pads[2 + i] < kernel[i] for i in range(2))


class _NormalizeAndPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor,
        shift: Tensor,
        shape: tuple[int, int, int, int],
        window: Window,
        epsilon: float,
        relu: bool,
        statistics: BatchStatistics,
    ) -> Tensor:
        x, scale, shift = x.contiguous(), scale.contiguous(), shift.contiguous()
        sizes = (*x.shape[:2], *pooled_sizes(shape, window), x.shape[4])
        out, chosen, taps = empty(*sizes), empty(*sizes), torch.empty(sizes, dtype=torch.uint8)
        of_batch = statistics.variance is not None
        CPU.batch_norm_pool_forward(
            pool().kernels, shape, x.detach(), scale.detach(), shift.detach(), epsilon if of_batch else None, relu,
            out, chosen, taps, statistics.mean, statistics.inverse_std, statistics.variance, **asdict(window),
        )  # fmt: skip
        ctx.save_for_backward(x, scale, shift, chosen, taps)
        ctx.shape, ctx.window, ctx.relu, ctx.statistics = shape, window, relu, statistics
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, scale, shift, chosen, taps = ctx.saved_tensors
        found: BatchStatistics = ctx.statistics
        dx, dscale, dshift = empty(*x.shape), torch.empty_like(scale), torch.empty_like(shift)
        CPU.batch_norm_pool_backward(
            pool().kernels, ctx.shape, dy.contiguous(), x, chosen, taps, scale.detach(), shift.detach(), found.mean,
            found.inverse_std, ctx.relu, found.variance is not None, dx, dscale, dshift, **asdict(ctx.window),
        )  # fmt: skip
        return dx, dscale, dshift, None, None, None, None, None
