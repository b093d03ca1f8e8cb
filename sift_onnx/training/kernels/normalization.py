"""Normalizations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from sift_onnx.training.registry import kernel
from sift_onnx.training.tensors import torch_dtype

__all__ = ["BatchNormalization"]


@kernel("BatchNormalization", since=9)
class BatchNormalization(nn.Module):
    """Normalizes with the batch's statistics in training mode and with running ones in evaluation mode.

    The running statistics are buffers of the imported module, and are updated in training mode. ONNX's ``momentum`` is
    the weight of the old value, torch's that of the new one. torch updates the running variance with the unbiased one
    of the batch, ONNX with the biased one; a model that was written by torch expects the former, which is the default.

    Attributes:
        biased: update the running variance as ONNX does.
    """

    def __init__(
        self, epsilon: float = 1e-5, momentum: float = 0.9, training_mode: int = 0, spatial: int = 1, outputs: int = 1
    ) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.momentum = momentum
        self.biased = False
        self.outputs = outputs

    def forward(self, x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        """The output and, asked for more, the running mean and variance after the update."""
        # torch reads them one after the other in memory, whatever their stride: one number that was expanded has none.
        scale, shift = scale.to(x.dtype).contiguous(), shift.to(x.dtype).contiguous()
        if not self.training:
            mean_of, variance_of = mean.to(x.dtype).contiguous(), variance.to(x.dtype).contiguous()
            result = functional.batch_norm(x, mean_of, variance_of, scale, shift, False, 0.0, self.epsilon)
            return result, mean, variance
        if not self.biased and mean.dtype == variance.dtype == x.dtype:
            weight = 1 - self.momentum
            return functional.batch_norm(x, mean, variance, scale, shift, True, weight, self.epsilon), mean, variance
        result = functional.batch_norm(x, None, None, scale, shift, True, 0.0, self.epsilon)
        with torch.no_grad():
            axes = [0, *range(2, x.dim())]
            new_mean, new_variance = x.mean(axes), x.var(axes, correction=0 if self.biased else 1)
            mean.mul_(self.momentum).add_(new_mean.to(mean.dtype), alpha=1 - self.momentum)
            variance.mul_(self.momentum).add_(new_variance.to(variance.dtype), alpha=1 - self.momentum)
        return result, mean, variance

    def extra_repr(self) -> str:
        return f"epsilon={self.epsilon}, momentum={self.momentum}, biased={self.biased}"


@kernel("LayerNormalization", since=17)
def layer_norm(
    x: Tensor,
    scale: Tensor,
    shift: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    outputs: int = 1,
) -> tuple[Tensor, ...]:
    """Normalization over the axes from ``axis`` on; the mean and the inverse deviation besides."""
    axis = axis % x.dim()
    shape = x.shape[axis:]
    if outputs == 1 and scale.shape == shape and (shift is None or shift.shape == shape):
        return (functional.layer_norm(x, shape, scale, shift, epsilon),)
    wide = x.to(torch.promote_types(x.dtype, torch_dtype(stash_type)))
    axes = list(range(axis, x.dim()))
    mean = wide.mean(axes, keepdim=True)
    inverse = torch.rsqrt((wide - mean).square().mean(axes, keepdim=True) + epsilon)
    result = ((wide - mean) * inverse).to(x.dtype) * scale
    return (result if shift is None else result + shift), mean, inverse


@kernel("RMSNormalization", since=23)
def rms_norm(x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch_dtype(stash_type)))
    axes = list(range(axis % x.dim(), x.dim()))
    return (wide * torch.rsqrt(wide.square().mean(axes, keepdim=True) + epsilon)).to(x.dtype) * scale


@kernel("InstanceNormalization", since=6)
def instance_norm(x: Tensor, scale: Tensor, shift: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    return functional.instance_norm(x, weight=scale, bias=shift, eps=epsilon)


@kernel("GroupNormalization", since=18)
def group_norm_per_group(x: Tensor, scale: Tensor, shift: Tensor, *, epsilon: float = 1e-5, num_groups: int) -> Tensor:
    """Version 18, whose scale and shift have one element per group."""
    repeats = x.shape[1] // num_groups
    return functional.group_norm(
        x, num_groups, scale.repeat_interleave(repeats), shift.repeat_interleave(repeats), epsilon
    )


@kernel("GroupNormalization", since=21)
def group_norm(
    x: Tensor, scale: Tensor, shift: Tensor, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1
) -> Tensor:
    return functional.group_norm(x, num_groups, scale, shift, epsilon)


@kernel("LRN")
def local_response_norm(x: Tensor, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int) -> Tensor:
    """Division by the mean square of ``size`` neighbouring channels; of an even number, one more comes after."""
    squares = functional.pad(x.square().flatten(2).transpose(1, 2), ((size - 1) // 2, size // 2))
    sums = squares.unfold(2, size, 1).sum(-1).transpose(1, 2).reshape(x.shape)
    return x / (bias + alpha / size * sums) ** beta


@kernel("LpNormalization")
def lp_normalize(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    norm = torch.linalg.vector_norm(x, p, axis, keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / torch.where(norm == 0, 1, norm))


@kernel("MeanVarianceNormalization", since=9)
def mean_variance_normalize(x: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    centred = x - x.mean(tuple(axes), keepdim=True)
    return centred / (centred.square().mean(tuple(axes), keepdim=True).sqrt() + 1e-9)
