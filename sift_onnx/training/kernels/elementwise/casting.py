"""Changes of data type."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sift_onnx.training.registry import kernel
from sift_onnx.training.tensors import torch_dtype

__all__ = ["cast", "cast_like", "convert"]

_WITHOUT_INFINITY = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
# Half a unit above the largest number, and whether what lies right there rounds back to it.
_OVERFLOWS_FROM = {
    torch.float8_e4m3fn: (464.0, True),
    torch.float8_e4m3fnuz: (248.0, False),
    torch.float8_e5m2: (61440.0, False),
    torch.float8_e5m2fnuz: (61440.0, False),
}
_FLOAT8 = (*_WITHOUT_INFINITY, torch.float8_e5m2)


def convert(x: Tensor, dtype: torch.dtype, saturate: int) -> Tensor:
    """``x`` as another type, by ONNX's rules for what does not fit."""
    if dtype in _FLOAT8 and x.dtype != dtype:
        return _to_float8(x.to(torch.float32), dtype, saturate)
    if dtype == torch.bool:
        return x != 0
    if not dtype.is_floating_point and x.dtype.is_floating_point and dtype != torch.int64:
        # Through 64 bits numbers wrap around; the direct way leaves what is out of range to the processor.
        return x.to(torch.int64).to(dtype)
    return x.to(dtype)


def _to_float8(x: Tensor, dtype: torch.dtype, saturate: int) -> Tensor:
    largest = torch.finfo(dtype).max
    rounded = x.clamp(-largest, largest).to(dtype)
    if saturate:
        return rounded
    beyond, to_even = _OVERFLOWS_FROM[dtype]
    outside = (x.abs() > beyond) if to_even else (x.abs() >= beyond)
    limit = torch.full_like(x, torch.nan if dtype in _WITHOUT_INFINITY else torch.inf).copysign(x)
    return torch.where(outside, limit, rounded.to(torch.float32)).to(dtype)


@kernel("Cast", since=6)
def cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """``x`` as another type; gradients pass between floating-point types."""
    return convert(x, torch_dtype(to), saturate)


@kernel("CastLike", since=15)
def cast_like(x: Tensor, target: Any, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """``x`` as the type of ``target``."""
    return convert(x, target.dtype, saturate)


@kernel("BitCast", since=26)
def bit_cast(x: Tensor, *, to: int) -> Tensor:
    return x.contiguous().view(torch_dtype(to))
