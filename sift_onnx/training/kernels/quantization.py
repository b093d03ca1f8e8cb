"""Quantization.

Rounding has no gradient: what lies before a quantized tensor is not trained through it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sift_onnx.training.kernels.elementwise.casting import convert
from sift_onnx.training.kernels.spatial.convolution import Convolution, convolve
from sift_onnx.training.registry import kernel
from sift_onnx.training.tensors import torch_dtype

__all__: list[str] = []

_UINT8 = 2


def _spread(scale: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """Scales or zero points in a shape that ``x`` is computed with: of all, of each slice, or of blocks of an axis."""
    if scale.dim() == 0 or scale.numel() == 1:
        return scale.reshape(())
    axis = axis % x.dim()
    if block_size:
        return scale.repeat_interleave(block_size, axis).narrow(axis, 0, x.shape[axis])
    return scale.reshape([-1 if i == axis else 1 for i in range(x.dim())])


@kernel("QuantizeLinear", since=10)
def quantize(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Tensor:
    kind = zero_point.dtype if zero_point is not None else torch_dtype(output_dtype or _UINT8)
    wide = torch_dtype(precision) if precision else x.dtype if x.dtype.is_floating_point else torch.float32
    scaled = x.to(wide) / _spread(scale, x, axis, block_size).to(wide)
    if kind.is_floating_point:
        return convert(scaled, kind, saturate)
    shifted = torch.round(scaled).to(torch.float64)
    if zero_point is not None:
        shifted = shifted + _spread(zero_point.to(torch.float64), x, axis, block_size)
    limits = torch.iinfo(kind)
    return shifted.clamp(limits.min, limits.max).to(torch.int64).to(kind)


@kernel("DequantizeLinear", since=10)
def dequantize(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    shifted = x.to(torch.float32)
    if zero_point is not None:
        shifted = shifted - _spread(zero_point.to(torch.float32), x, axis, block_size)
    kind = torch_dtype(output_dtype) if output_dtype else scale.dtype
    return (shifted * _spread(scale, x, axis, block_size).to(torch.float32)).to(kind)


@kernel("DynamicQuantizeLinear", since=11)
def quantize_dynamically(x: Tensor, *, outputs: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """8 bits over the range of ``x`` with 0 in it; the scale and the zero point."""
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = torch.where(low == high, torch.ones_like(low), high - low) / 255
    zero = torch.round((-low / scale).clamp(0, 255))
    return (torch.round(x / scale) + zero).clamp(0, 255).to(torch.uint8), scale, zero.to(torch.uint8)


@kernel("MatMulInteger", since=10)
def matmul_integer(a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None) -> Tensor:
    return (_shifted(a, a_zero, -2) @ _shifted(b, b_zero, -1)).to(torch.int32)


def _shifted(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    # Exact: products of 8-bit numbers and their sums fit into the 53 bits of a double.
    wide = x.to(torch.float64)
    if zero is None:
        return wide
    zero = zero.to(torch.float64)
    return wide - (zero.unsqueeze(-1) if zero.dim() and axis == -2 else zero)


@kernel("QLinearMatMul", since=10)
def quantized_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:
    product = _shifted(a, a_zero, -2) @ _shifted(b, b_zero, -1)
    scaled = product * (a_scale.to(torch.float64) * b_scale.to(torch.float64) / y_scale.to(torch.float64))
    return _requantized(scaled, y_zero)


def _requantized(scaled: Tensor, zero: Tensor) -> Tensor:
    limits = torch.iinfo(zero.dtype)
    return (torch.round(scaled) + zero.to(torch.float64)).clamp(limits.min, limits.max).to(zero.dtype)


def _integer_convolution(
    x: Tensor, x_zero: Tensor | None, w: Tensor, w_zero: Tensor | None, bias: Tensor | None = None, **attributes: Any
) -> Tensor:
    centred = w.to(torch.float64)
    if w_zero is not None:
        centred = centred - _spread(w_zero.to(torch.float64), w, 0, 0)
    return convolve(_shifted(x, x_zero, -1), centred, None if bias is None else bias.to(torch.float64), **attributes)


@kernel("ConvInteger", since=10, attributes=Convolution)
def convolve_integers(
    x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None, **attributes: Any
) -> Tensor:
    return _integer_convolution(x, x_zero, w, w_zero, **attributes).to(torch.int32)


@kernel("QLinearConv", since=10, attributes=Convolution)
def convolve_quantized(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
    **attributes: Any,
) -> Tensor:
    sums = _integer_convolution(x, x_zero, w, w_zero, bias, **attributes)
    factor = x_scale.to(torch.float64) * _spread(w_scale.to(torch.float64), sums, 1, 0) / y_scale.to(torch.float64)
    return _requantized(sums * factor, y_zero)
