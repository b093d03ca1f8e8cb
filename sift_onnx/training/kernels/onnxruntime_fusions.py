"""Operators that onnxruntime's optimizer writes, of the domain ``com.microsoft``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from sift_onnx.operators.domains import MICROSOFT
from sift_onnx.training.registry import kernel

__all__: list[str] = []


@kernel("Gelu", domain=MICROSOFT)
def gelu(x: Tensor) -> Tensor:
    return functional.gelu(x)


@kernel("FastGelu", domain=MICROSOFT)
def fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.gelu(x if bias is None else x + bias, approximate="tanh")


@kernel("BiasGelu", domain=MICROSOFT)
def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(x + bias)


@kernel("QuickGelu", domain=MICROSOFT)
def quick_gelu(x: Tensor, *, alpha: float = 1.702) -> Tensor:
    return x * torch.sigmoid(alpha * x)


@kernel("FusedMatMul", domain=MICROSOFT)
def fused_matmul(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Tensor:
    a, b = (a.transpose(-1, -2) if transA else a), (b.transpose(-1, -2) if transB else b)
    return alpha * (a @ b)


@kernel("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(
    x: Tensor,
    skip: Tensor,
    scale: Tensor,
    shift: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    outputs: int = 1,
) -> tuple[Tensor, ...]:
    """Layer normalization of a sum; the sum is the fourth output, the second and third are not computed."""
    total = x + skip if bias is None else x + skip + bias
    result = functional.layer_norm(total, total.shape[-1:], scale, shift, epsilon)
    return result, total, total, total
