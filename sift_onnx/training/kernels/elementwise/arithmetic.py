"""Elementwise numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from sift_onnx.training.registry import kernel, register_kernel

__all__: list[str] = []

# torch computes with few operators on these; they are computed as int64, and wrap around when they come back.
_WIDENED = (torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.uint8)

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Log": torch.log,
    "Neg": torch.neg,
    "Reciprocal": torch.reciprocal,
    "Round": torch.round,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}


for _op, _run in _UNARY.items():
    kernel(_op)(_run)


def widened(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """``function`` of two tensors of one type, of small and unsigned integers as well."""
    if x.dtype in _WIDENED:
        return function(x.to(torch.int64), y.to(torch.int64)).to(x.dtype)
    return function(x, y)


@kernel("Add", since=7)
def add(x: Tensor, y: Tensor) -> Tensor:
    return widened(torch.add, x, y)


@kernel("Sub", since=7)
def sub(x: Tensor, y: Tensor) -> Tensor:
    return widened(torch.sub, x, y)


@kernel("Mul", since=7)
def mul(x: Tensor, y: Tensor) -> Tensor:
    return widened(torch.mul, x, y)


@kernel("Div", since=7)
def div(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype.is_floating_point or x.dtype.is_complex:
        return x / y
    return widened(lambda a, b: torch.div(a, b, rounding_mode="trunc"), x, y)


@kernel("Mod", since=10)
def mod(x: Tensor, y: Tensor, *, fmod: int = 0) -> Tensor:
    return widened(torch.fmod if fmod else torch.remainder, x, y)


@kernel("Pow", since=7)
def power(x: Tensor, y: Tensor) -> Tensor:
    return torch.pow(x, y).to(x.dtype)


@kernel("Min", since=8)
def minimum(*parts: Tensor) -> Tensor:
    return reduce(partial(widened, torch.minimum), parts)


@kernel("Max", since=8)
def maximum(*parts: Tensor) -> Tensor:
    return reduce(partial(widened, torch.maximum), parts)


@kernel("Sum", since=8)
def total(*parts: Tensor) -> Tensor:
    return reduce(torch.add, parts)


@kernel("Mean", since=8)
def mean(*parts: Tensor) -> Tensor:
    return reduce(torch.add, parts) / len(parts)


@kernel("Clip", since=11, host=(1, 2))
def clip(x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    if low is None and high is None:
        return x
    low, high = (
        None if bound is None else torch.as_tensor(bound, device=x.device).to(x.dtype) for bound in (low, high)
    )
    if x.dtype in _WIDENED:
        wide = (None if bound is None else bound.to(torch.int64) for bound in (low, high))
        return torch.clamp(x.to(torch.int64), *wide).to(x.dtype)
    return torch.clamp(x, low, high)


@kernel("IsInf", since=10)
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    found = torch.isinf(x)
    if not detect_negative:
        found &= x > 0
    if not detect_positive:
        found &= x < 0
    return found


register_kernel("IsNaN", torch.isnan)


@kernel("BitShift", since=11)
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    return widened(torch.bitwise_left_shift if direction == "LEFT" else torch.bitwise_right_shift, x, y)


@kernel("BitwiseAnd", since=18)
def bitwise_and(x: Tensor, y: Tensor) -> Tensor:
    return widened(torch.bitwise_and, x, y)


@kernel("BitwiseOr", since=18)
def bitwise_or(x: Tensor, y: Tensor) -> Tensor:
    return widened(torch.bitwise_or, x, y)


@kernel("BitwiseNot", since=18)
def bitwise_not(x: Tensor) -> Tensor:
    return widened(lambda a, _: torch.bitwise_not(a), x, x)


@kernel("BitwiseXor", since=18)
def bitwise_xor(x: Tensor, y: Tensor) -> Tensor:
    return widened(torch.bitwise_xor, x, y)
