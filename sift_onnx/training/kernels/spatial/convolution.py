"""Convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sift_onnx.operators.windows import explicit_pads
from sift_onnx.training.host import ints
from sift_onnx.training.registry import kernel
from sift_onnx.training.windows import pad, subsampled

__all__ = ["Convolution", "Window", "convolve"]

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


@dataclass(frozen=True)
class Window:
    """Attributes that convolutions and pools share, by ONNX's names; an empty sequence is the default."""

    auto_pad: str = "NOTSET"
    dilations: Sequence[int] = ()
    kernel_shape: Sequence[int] = ()
    pads: Sequence[int] = ()
    strides: Sequence[int] = ()

    def steps(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Strides and dilations of ``rank`` spatial axes."""
        ones = (1,) * rank
        return tuple(self.strides) or ones, tuple(self.dilations) or ones


@dataclass(frozen=True)
class Convolution(Window):
    """Attributes that convolutions share."""

    group: int = 1


@kernel("Conv", since=11, attributes=Convolution)
def convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None, **attributes: Any) -> Tensor:
    """Convolution; weight is output channels x input channels per group x kernel."""
    window, rank = Convolution(**attributes), x.dim() - 2
    strides, dilations = window.steps(rank)
    pads = explicit_pads(window.auto_pad, window.pads, x.shape[2:], weight.shape[2:], strides, dilations)
    if pads[:rank] != pads[rank:]:
        x, pads = pad(x, pads), (0,) * (2 * rank)
    if not any(pads) and torch.is_grad_enabled():
        x, strides = subsampled(x, weight.shape, strides)
    return _CONVOLUTIONS[rank](x, weight, bias, strides, pads[:rank], dilations, window.group)


@kernel("ConvTranspose", since=11, attributes=Convolution)
def convolve_transposed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    output_padding: Sequence[int] = (),
    output_shape: Sequence[int] = (),
    **attributes: Any,
) -> Tensor:
    """Transposed convolution; weight is input channels x output channels per group x kernel."""
    window, rank = Convolution(**attributes), x.dim() - 2
    auto_pad, pads, group = window.auto_pad, window.pads, window.group
    strides, dilations = window.steps(rank)
    extra = output_padding or (0,) * rank
    full = [
        strides[i] * (x.shape[2 + i] - 1) + extra[i] + (weight.shape[2 + i] - 1) * dilations[i] + 1 for i in range(rank)
    ]
    if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        sizes = list(output_shape)[-rank:] or [x.shape[2 + i] * strides[i] for i in range(rank)]
        totals = [full[i] - sizes[i] for i in range(rank)]
        small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
        pads = (*small, *large) if auto_pad == "SAME_UPPER" else (*large, *small)
    pads = pads or (0,) * (2 * rank)
    # What output_padding adds at the end is inside the full result, once that is computed without cropping.
    result = _TRANSPOSED[rank](x, weight, bias, tuple(strides), 0, _valid(extra, strides, dilations), group, dilations)
    missing = [full[i] - result.shape[2 + i] for i in range(rank)]
    if any(missing):
        result = pad(result, (*(0,) * rank, *missing))
        if bias is not None:
            result = _bias_at_end(result, bias, missing)
    for i in range(rank):
        length = full[i] - pads[i] - pads[rank + i]
        if pads[i] < 0:
            result = pad(result, [-pads[i] if j == i else 0 for j in range(rank)] + [0] * rank)
        result = result.narrow(2 + i, max(pads[i], 0), min(length, result.shape[2 + i] - max(pads[i], 0)))
        if result.shape[2 + i] < length:
            result = pad(result, [0] * rank + [length - result.shape[2 + i] if j == i else 0 for j in range(rank)])
    return result


def _valid(extra: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> tuple[int, ...]:
    """Output padding as far as torch takes it, which wants less than a stride or a dilation."""
    fits = all(e < max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True))
    return tuple(extra) if fits else (0,) * len(extra)


def _bias_at_end(result: Tensor, bias: Tensor, missing: Sequence[int]) -> Tensor:
    inside = torch.ones_like(result)
    for axis, extra in enumerate(missing, 2):
        inside.narrow(axis, inside.shape[axis] - extra, extra).zero_()
    return result + (1 - inside) * bias.reshape(1, -1, *(1,) * len(missing))


@kernel("CausalConvWithState", since=27)
def causal_convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    state: Tensor | None = None,
    *,
    activation: str = "none",
    outputs: int = 1,
) -> tuple[Tensor, ...]:
    """Depthwise convolution over the past; x is batch x channels x length."""
    kept = weight.shape[-1] - 1
    past = state if state is not None else x.new_zeros(*x.shape[:2], kept)
    whole = torch.cat([past.to(x.dtype), x], 2)
    result = functional.conv1d(whole, weight, bias, groups=x.shape[1])
    if activation in ("silu", "swish"):
        result = functional.silu(result)
    return result, whole[:, :, whole.shape[2] - kept :]


@kernel("Col2Im", since=18, host=(1, 2))
def fold_columns(
    x: Tensor,
    image_shape: Any,
    block_shape: Any,
    *,
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:
    """Sums columns of blocks (batch x channels * block x blocks) into an image."""
    image, block = ints(image_shape), ints(block_shape)
    rank = len(image)
    strides, dilations, pads = strides or (1,) * rank, dilations or (1,) * rank, pads or (0,) * (2 * rank)
    channels = x.shape[1] // math.prod(block)
    padded = [image[i] + pads[i] + pads[rank + i] for i in range(rank)]
    counts = [(padded[i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(rank)]
    # Flat positions in the padded image: a sum over axes of block offset plus element offset.
    positions = torch.zeros((1,) * (2 * rank), dtype=torch.int64, device=x.device)
    for i in range(rank):
        step = math.prod(padded[i + 1 :])
        inside = torch.arange(block[i], device=x.device) * dilations[i] * step
        across = torch.arange(counts[i], device=x.device) * strides[i] * step
        positions = positions + inside.reshape([-1 if j == i else 1 for j in range(2 * rank)])
        positions = positions + across.reshape([-1 if j == rank + i else 1 for j in range(2 * rank)])
    flat = x.new_zeros(x.shape[0], channels, math.prod(padded))
    values = x.reshape(x.shape[0], channels, -1)
    summed = flat.index_add(2, positions.reshape(-1), values).reshape(x.shape[0], channels, *padded)
    for i in range(rank):
        summed = summed.narrow(2 + i, pads[i], image[i])
    return summed


@kernel("DeformConv", since=19)
def convolve_deformed(
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: Sequence[int] = (1, 1),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    offset_group: int = 1,
    pads: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
) -> Tensor:
    """2-D convolution whose taps lie at computed offsets, between pixels by bilinear interpolation.

    ``offset`` is batch x (offset groups * kernel * 2) x output, rows before columns; ``mask`` weighs each tap.
    """
    batch, channels, height, width = x.shape
    extents, taps = weight.shape[2:], math.prod(weight.shape[2:])
    out = offset.shape[2:]
    shifts = offset.reshape(batch, offset_group, taps, 2, *out)
    starts = [torch.arange(out[i], device=x.device) * strides[i] - pads[i] for i in range(2)]
    inside = [torch.arange(extents[i], device=x.device) * dilations[i] for i in range(2)]
    rows = inside[0].repeat_interleave(extents[1]).reshape(-1, 1, 1) + starts[0].reshape(1, -1, 1) + shifts[:, :, :, 0]
    columns = inside[1].repeat(extents[0]).reshape(-1, 1, 1) + starts[1].reshape(1, 1, -1) + shifts[:, :, :, 1]
    # grid_sample counts from -1 to 1 between the outer edges of the outermost pixels.
    grid = torch.stack([(2 * columns + 1) / width - 1, (2 * rows + 1) / height - 1], -1)
    images = x.reshape(batch * offset_group, channels // offset_group, height, width)
    places = grid.reshape(batch * offset_group, taps * out[0], out[1], 2)
    sampled = functional.grid_sample(images, places, "bilinear", "zeros", align_corners=False)
    sampled = sampled.reshape(batch, offset_group, -1, taps, *out)
    if mask is not None:
        sampled = sampled * mask.reshape(batch, offset_group, 1, taps, *out)
    patches = sampled.reshape(batch, group, channels // group * taps, math.prod(out))
    result = torch.einsum("goi,ngip->ngop", weight.reshape(group, weight.shape[0] // group, -1), patches)
    result = result.reshape(batch, weight.shape[0], *out)
    return result if bias is None else result + bias.reshape(1, -1, 1, 1)
