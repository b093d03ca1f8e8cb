"""Activations of tensors in lanes. The backward pass keeps one tensor of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sift_onnx.training.compilation import never_compiled
from sift_onnx.training.sparse_layers.kernels import CPU, empty, pool, runs_on_kernels
from sift_onnx.training.sparse_layers.lanes.tensors import Lanes, Recomputation

__all__ = ["activate"]

# A name and two numbers, as kernels take them.
Function = tuple[str, float, float]


@never_compiled
def activate(kernel: str, run: Callable[..., Tensor], x: Lanes, *args: Any, **attributes: Any) -> Lanes:
    """A function of each element.

    Args:
        kernel: the name of an operator's kernel.
        run: computes it by torch, where no kernel in lanes does.
        x: activations.
        args: numbers that the operator takes.
        attributes: of the operator.
    """
    found = _FUNCTIONS.get(kernel)
    function = None if found is None or not runs_on_kernels(x.data) else found(*args, **attributes)
    if function is None:
        return x.map(run, *args, **attributes)
    shape = x.kernel_shape
    data: Tensor = _Activation.apply(x.data, shape, function)  # type: ignore[no-untyped-call]
    if _keeps_result(function):
        return x.with_data(data)
    return x.with_data(data, Recomputation(lambda kept: _activated(kept, shape, function), (x.data,)))


def _keeps_result(function: Function) -> bool:
    """Whether the backward pass needs the result: the sign of a ReLU's is that of its input."""
    return function[0] == "relu"


def _activated(x: Tensor, shape: tuple[int, int, int, int], function: Function) -> Tensor:
    x = x.contiguous()
    out = empty(*x.shape)
    CPU.activation_forward(pool().kernels, shape, function, x.detach(), out)
    return out


def _gelu(approximate: str = "none") -> Function:
    return ("gelu_tanh" if approximate == "tanh" else "gelu", 0.0, 0.0)


def _clip(low: Any = None, high: Any = None) -> Function | None:
    if any(isinstance(bound, Tensor) and bound.requires_grad for bound in (low, high)):
        return None
    return "clip", -math.inf if low is None else float(low), math.inf if high is None else float(high)


# By the names of lane_operators; with the defaults of ONNX.
_FUNCTIONS: dict[str, Callable[..., Function | None]] = {
    "relu": lambda: ("relu", 0.0, 0.0),
    "leaky_relu": lambda alpha=0.01: ("leaky", alpha, 0.0),
    "clip": _clip,
    "hard_sigmoid": lambda alpha=0.2, beta=0.5: ("hard_sigmoid", alpha, beta),
    "hard_swish": lambda: ("hard_swish", 0.0, 0.0),
    "sigmoid": lambda: ("sigmoid", 0.0, 0.0),
    "tanh": lambda: ("tanh", 0.0, 0.0),
    "swish": lambda alpha=1.0: ("swish", alpha, 0.0),
    "gelu": _gelu,
}


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: tuple[int, int, int, int], function: Function) -> Tensor:
        x = x.contiguous()
        out = _activated(x, shape, function)
        ctx.save_for_backward(out if _keeps_result(function) else x)
        ctx.shape, ctx.function = shape, function
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        dx = empty(*x.shape)
        CPU.activation_backward(pool().kernels, ctx.shape, ctx.function, dy.contiguous(), x, dx)
        return dx, None, None
