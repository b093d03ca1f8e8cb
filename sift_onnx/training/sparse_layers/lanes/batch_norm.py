"""Batch normalization of images in lanes, with the sum and the ReLU behind it in one pass over memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sift_onnx.training.compilation import never_compiled
from sift_onnx.training.kernels.normalization import BatchNormalization
from sift_onnx.training.sparse_layers.kernels import CPU, empty, pool, runs_on_kernels
from sift_onnx.training.sparse_layers.lanes.tensors import (
    LANES,
    Lanes,
    Recomputation,
    beside,
    combined,
    from_lanes,
    image_lanes,
)

__all__ = ["BatchStatistics", "normalize", "statistics_for", "update_running", "value_count"]


@never_compiled
def normalize(
    module: BatchNormalization,
    x: Lanes,
    scale: Tensor,
    shift: Tensor,
    mean: Tensor,
    variance: Tensor,
    residual: Lanes | Tensor | None = None,
    *,
    relu: bool = False,
) -> Lanes:
    """``relu(batch_norm(x) + residual)``; running statistics are updated in training mode.

    Args:
        module: that has the settings.
        x: images.
        scale: per channel.
        shift: per channel.
        mean: running mean.
        variance: running variance.
        residual: is added; None for nothing.
        relu: whether negative sums become zero.
    """
    added = None if residual is None else beside(residual, x)
    same = (residual is None) if added is None else added.data.shape == x.data.shape
    fits = all(runs_on_kernels(t) for t in (x.data, scale, shift, mean, variance))
    if not fits or not same or (module.training and value_count(x) == 1):
        result = _by_torch(module, x, scale, shift, mean, variance)
        result = result if residual is None else combined(torch.add, result, residual)
        return result.map(torch.relu) if relu else result
    found = statistics_for(module, mean, variance)
    sums = None if added is None else added.data
    data: Tensor = _Normalize.apply(  # type: ignore[no-untyped-call]
        x.data, scale, shift, sums, x.kernel_shape, module.epsilon, relu, found
    )
    if module.training:
        update_running(module, mean, variance, found, value_count(x))
    return x.with_data(data, _recomputation(x, scale, shift, found, relu=relu) if sums is None else None)


def _recomputation(x: Lanes, scale: Tensor, shift: Tensor, found: BatchStatistics, *, relu: bool) -> Recomputation:
    shape = x.kernel_shape

    def normalized(data: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, inverse_std: Tensor) -> Tensor:
        return _applied(data, scale, shift, shape, mean, inverse_std, relu=relu)

    return Recomputation(normalized, (x.data, scale, shift, found.mean, found.inverse_std))


def _applied(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    shape: tuple[int, int, int, int],
    mean: Tensor,
    inverse_std: Tensor,
    residual: Tensor | None = None,
    *,
    relu: bool,
) -> Tensor:
    out = empty(*x.shape)
    numbers = [t.detach().contiguous() for t in (x, scale, shift)]
    CPU.batch_norm_apply(pool().kernels, shape, *numbers, mean, inverse_std, relu, residual, out)
    return out


@dataclass(frozen=True)
class BatchStatistics:
    """Per channel; those of a batch are written when it is normalized.

    Attributes:
        mean: of the values.
        inverse_std: of the values.
        variance: biased, of a batch; None if the statistics are given.
    """

    mean: Tensor
    inverse_std: Tensor
    variance: Tensor | None


def statistics_for(module: BatchNormalization, mean: Tensor, variance: Tensor) -> BatchStatistics:
    """Places for those of a batch in training mode, or the running ones."""
    if module.training:
        return BatchStatistics(torch.empty_like(mean), torch.empty_like(mean), torch.empty_like(mean))
    return BatchStatistics(mean.clone(), (variance + module.epsilon).rsqrt(), None)


@torch.no_grad()
def update_running(
    module: BatchNormalization, mean: Tensor, variance: Tensor, found: BatchStatistics, count: int
) -> None:
    """Move running statistics towards those of a batch of ``count`` values per channel."""
    assert found.variance is not None
    new = found.variance if module.biased else found.variance * (count / (count - 1))
    mean.mul_(module.momentum).add_(found.mean, alpha=1 - module.momentum)
    variance.mul_(module.momentum).add_(new, alpha=1 - module.momentum)


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor,
        shift: Tensor,
        residual: Tensor | None,
        shape: tuple[int, int, int, int],
        epsilon: float,
        relu: bool,
        statistics: BatchStatistics,
    ) -> Tensor:
        x, scale, shift = x.contiguous(), scale.contiguous(), shift.contiguous()
        residual = None if residual is None else residual.contiguous()
        mean, inverse_std = statistics.mean, statistics.inverse_std
        if statistics.variance is None:
            out = _applied(x, scale, shift, shape, mean, inverse_std, residual, relu=relu)
        else:
            out = empty(*x.shape)
            numbers = (x.detach(), scale.detach(), shift.detach())
            CPU.batch_norm_forward(
                pool().kernels, shape, *numbers, epsilon, relu, residual, out, mean, inverse_std, statistics.variance
            )
        # Without a residual the sign of the result is found again from x, which reads less.
        ctx.save_for_backward(x, scale, shift, out if relu and residual is not None else None)
        ctx.shape, ctx.relu, ctx.statistics, ctx.adds = shape, relu, statistics, residual is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, scale, shift, out = ctx.saved_tensors
        found: BatchStatistics = ctx.statistics
        dx, dscale, dshift = empty(*x.shape), torch.empty_like(scale), torch.empty_like(shift)
        dresidual = empty(*x.shape) if ctx.adds else None
        CPU.batch_norm_backward(
            pool().kernels, ctx.shape, dy.contiguous(), x, out, scale.detach(), found.mean, found.inverse_std,
            dx, dscale, dshift, dresidual, bias=shift.detach(), relu=ctx.relu, of_batch=found.variance is not None,
        )  # fmt: skip
        return dx, dscale, dshift, dresidual, None, None, None, None


def value_count(x: Lanes) -> int:
    """Values per channel."""
    n, _, h, w = x.kernel_shape
    return n * h * w


def _by_torch(module: BatchNormalization, x: Lanes, *statistics: Tensor) -> Lanes:
    if module.training and x.n % LANES:
        # Idle lanes must not count.
        return image_lanes(module(from_lanes(x), *statistics)[0])
    return x.with_data(module(x.data, *statistics)[0])
