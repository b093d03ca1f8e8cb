"""Activations, and what normalises along one axis."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from sift_onnx.training.registry import kernel

__all__: list[str] = []

kernel("Sigmoid")(torch.sigmoid)
kernel("Softsign")(functional.softsign)
kernel("Mish", since=18)(functional.mish)


@kernel("Relu")
def relu(x: Tensor) -> Tensor:
    return torch.relu(x)


@kernel("LeakyRelu", since=6)
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return functional.leaky_relu(x, alpha)


@kernel("PRelu", since=9)
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    # The slope is broadcast as a whole, where torch has one per channel.
    return torch.where(x < 0, x * slope, x)


@kernel("Elu", since=6)
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return functional.elu(x, alpha)


@kernel("Celu", since=12)
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return functional.celu(x, alpha)


@kernel("Selu", since=6)
def selu(x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Tensor:
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


@kernel("HardSigmoid", since=6)
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return torch.clamp(alpha * x + beta, 0, 1)


@kernel("HardSwish", since=14)
def hard_swish(x: Tensor) -> Tensor:
    return x * torch.clamp(x / 6 + 0.5, 0, 1)


@kernel("Softplus")
def softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros((), dtype=x.dtype, device=x.device))


@kernel("ThresholdedRelu", since=10)
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return torch.where(x > alpha, x, torch.zeros((), dtype=x.dtype, device=x.device))


@kernel("Gelu", since=20)
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return functional.gelu(x, approximate=approximate)


@kernel("Swish", since=24)
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x * torch.sigmoid(alpha * x)


@kernel("Shrink", since=9)
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    shifted = torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, torch.zeros_like(x)))
    return shifted.to(x.dtype)


def _as_matrix(x: Tensor, axis: int) -> Tensor:
    """Axes before ``axis`` as rows, the others as columns, as Softmax was defined up to opset 12."""
    axis = axis + x.dim() if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), -1)


@kernel("Softmax", since=11)
def softmax_of_matrix(x: Tensor, *, axis: int = 1) -> Tensor:
    return torch.softmax(_as_matrix(x, axis), 1).reshape(x.shape)


@kernel("LogSoftmax", since=11)
def log_softmax_of_matrix(x: Tensor, *, axis: int = 1) -> Tensor:
    return torch.log_softmax(_as_matrix(x, axis), 1).reshape(x.shape)


@kernel("Hardmax", since=11)
def hardmax_of_matrix(x: Tensor, *, axis: int = 1) -> Tensor:
    return hardmax(_as_matrix(x, axis), axis=1).reshape(x.shape)


@kernel("Softmax", since=13)
def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.softmax(x, axis)


@kernel("LogSoftmax", since=13)
def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.log_softmax(x, axis)


@kernel("Hardmax", since=13)
def hardmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.zeros_like(x).scatter(axis, x.argmax(axis, keepdim=True), 1)


@kernel("SwiGLU", since=28)
def swiglu(a: Tensor, b: Tensor, *, alpha: float = 1.0) -> Tensor:
    return swish(a, alpha=alpha) * b
