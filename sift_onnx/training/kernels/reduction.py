"""Reductions, running sums and positions of extremes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sift_onnx.training.host import ints, number
from sift_onnx.training.registry import kernel

__all__ = ["reduce_mean"]

Reduce = Callable[[Tensor, list[int]], Tensor]


def _sum(x: Tensor, axes: list[int]) -> Tensor:
    return x.sum(axes, keepdim=True, dtype=x.dtype)


def _mean(x: Tensor, axes: list[int]) -> Tensor:
    if x.dtype.is_floating_point:
        return x.mean(axes, keepdim=True)
    return (x.sum(axes, keepdim=True) // math.prod(x.shape[a] for a in axes)).to(x.dtype)


def _product(x: Tensor, axes: list[int]) -> Tensor:
    for axis in axes:
        x = x.prod(axis, keepdim=True, dtype=x.dtype)
    return x


def _extreme(function: Callable[..., Tensor], of_nothing: float) -> Reduce:
    def run(x: Tensor, axes: list[int]) -> Tensor:
        if any(x.shape[axis] == 0 for axis in axes):
            sizes = [1 if i in axes else n for i, n in enumerate(x.shape)]
            if x.dtype == torch.bool:
                return torch.full(sizes, of_nothing > 0, device=x.device)
            limits = torch.finfo(x.dtype) if x.dtype.is_floating_point else torch.iinfo(x.dtype)
            fill = of_nothing if x.dtype.is_floating_point else (limits.max if of_nothing > 0 else limits.min)
            return torch.full(sizes, fill, dtype=x.dtype, device=x.device)
        return function(x, axes, keepdim=True)

    return run


def _log_sum_exp(x: Tensor, axes: list[int]) -> Tensor:
    return torch.logsumexp(x, axes, keepdim=True)


_REDUCTIONS: dict[str, Reduce] = {
    "ReduceL1": lambda x, axes: _sum(x.abs(), axes),
    "ReduceL2": lambda x, axes: _sum(x * x, axes).sqrt(),
    "ReduceLogSum": lambda x, axes: _sum(x, axes).log(),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _extreme(torch.amax, -math.inf),
    "ReduceMean": _mean,
    "ReduceMin": _extreme(torch.amin, math.inf),
    "ReduceProd": _product,
    "ReduceSum": _sum,
    "ReduceSumSquare": lambda x, axes: _sum(x * x, axes),
}

# What reducing no axis at all does to each element.
_OF_ONE_ELEMENT: dict[str, Callable[[Tensor], Tensor]] = {
    "ReduceL1": torch.abs,
    "ReduceL2": torch.abs,
    "ReduceLogSum": torch.log,
    "ReduceSumSquare": torch.square,
}


def _kernel_of(op: str, reduce: Reduce) -> Callable[..., Tensor]:
    def run(x: Tensor, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
        chosen = sorted(axis % x.dim() for axis in ints(axes)) if axes is not None and x.dim() else []
        if not chosen and (noop_with_empty_axes or not x.dim()):
            return _OF_ONE_ELEMENT.get(op, torch.clone)(x)
        chosen = chosen or list(range(x.dim()))
        reduced = reduce(x, chosen)
        return reduced if keepdims else reduced.reshape([n for i, n in enumerate(x.shape) if i not in chosen])

    return run


_RUNS = {op: kernel(op, host=(1,))(_kernel_of(op, reduce)) for op, reduce in _REDUCTIONS.items()}
reduce_mean = _RUNS["ReduceMean"]


def _position(x: Tensor, axis: int, keepdims: int, last: int, function: Callable[..., Tensor]) -> Tensor:
    # torch says nothing of ties: the first of them is found as the largest of descending numbers.
    extreme = function(x, axis, keepdim=True)
    steps = torch.arange(x.shape[axis], device=x.device).reshape(-1, *(1,) * (x.dim() - 1 - axis % x.dim()))
    outside = -1 if last else x.shape[axis]
    steps = torch.where(x == extreme, steps, outside)
    return steps.amax(axis, keepdim=bool(keepdims)) if last else steps.amin(axis, keepdim=bool(keepdims))


@kernel("ArgMax")
def arg_max(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _position(x, axis, keepdims, select_last_index, torch.amax)


@kernel("ArgMin")
def arg_min(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _position(x, axis, keepdims, select_last_index, torch.amin)


def _running(function: Callable[..., Tensor], neutral: int) -> Callable[..., Tensor]:
    def run(x: Tensor, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
        along = int(number(axis))
        values = x.flip(along) if reverse else x
        if exclusive:
            first = torch.full_like(values.narrow(along, 0, 1), neutral)
            values = torch.cat([first, values.narrow(along, 0, values.shape[along] - 1)], along)
        result = function(values, along, dtype=x.dtype)
        return result.flip(along) if reverse else result

    return run


kernel("CumSum", since=11, host=(1,))(_running(torch.cumsum, 0))
kernel("CumProd", since=26, host=(1,))(_running(torch.cumprod, 1))
