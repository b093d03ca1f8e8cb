"""Layer normalization of tokens in lanes, and RMS normalization, which subtracts no mean."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sift_onnx.training.compilation import never_compiled
from sift_onnx.training.kernels import normalization
from sift_onnx.training.sparse_layers.kernels import CPU, empty, pool, runs_on_kernels
from sift_onnx.training.sparse_layers.lanes.tensors import Lanes, from_lanes, token_lanes

__all__ = ["layer_norm", "rms_norm"]


@never_compiled
def layer_norm(x: Lanes, scale: Tensor, shift: Tensor | None = None, *, epsilon: float) -> Lanes:
    """Normalization of each token over its features.

    Args:
        x: tokens.
        scale: per feature.
        shift: per feature; None for zeros.
        epsilon: is added to the variance.
    """
    if not all(runs_on_kernels(t) for t in (x.data, scale, shift) if t is not None):
        return token_lanes(normalization.layer_norm(from_lanes(x), scale, shift, epsilon=epsilon)[0])
    data: Tensor = _LayerNorm.apply(x.data, scale, shift, x.kernel_shape, epsilon, True)  # type: ignore[no-untyped-call]
    return x.with_data(data)


@never_compiled
def rms_norm(x: Lanes, scale: Tensor, *, epsilon: float) -> Lanes:
    """Each token divided by the root of its features' mean square.

    Args:
        x: tokens.
        scale: per feature.
        epsilon: is added to the mean square.
    """
    if not all(runs_on_kernels(t) for t in (x.data, scale)):
        return token_lanes(normalization.rms_norm(from_lanes(x), scale, epsilon=epsilon))
    data: Tensor = _LayerNorm.apply(x.data, scale, None, x.kernel_shape, epsilon, False)  # type: ignore[no-untyped-call]
    return x.with_data(data)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor,
        shift: Tensor | None,
        shape: tuple[int, int, int, int],
        epsilon: float,
        centers: bool,
    ) -> Tensor:
        x, scale = x.contiguous(), scale.contiguous()
        shift = None if shift is None else shift.contiguous()
        out = empty(*x.shape)
        mean = torch.empty(x.shape[0], x.shape[4]) if centers else None
        inverse_std = torch.empty(x.shape[0], x.shape[4])
        numbers = (x.detach(), scale.detach(), None if shift is None else shift.detach())
        CPU.layer_norm_forward(pool().kernels, shape, *numbers, epsilon, out, mean, inverse_std)
        ctx.save_for_backward(x, scale, mean, inverse_std)
        ctx.shape, ctx.shifts = shape, shift is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, scale, mean, inverse_std = ctx.saved_tensors
        dx, dscale = empty(*x.shape), torch.empty_like(scale)
        dshift = torch.empty_like(scale) if ctx.shifts else None
        CPU.layer_norm_backward(
            pool().kernels, ctx.shape, dy.contiguous(), x, scale.detach(), mean, inverse_std, dx, dscale, dshift
        )
        return dx, dscale, dshift, None, None, None
