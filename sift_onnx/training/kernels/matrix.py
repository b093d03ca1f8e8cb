"""Products of matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from sift_onnx.training.registry import kernel

__all__: list[str] = []

kernel("Det", since=11)(torch.linalg.det)


@kernel("MatMul", since=9)
def matmul(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


@kernel("Gemm", since=11)
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Tensor:
    a, b = (a.T if transA else a), (b.T if transB else b)
    if c is None or beta == 0:
        product = a @ b
        return product if alpha == 1 else alpha * product
    if c.dim() <= 2 and a.dtype.is_floating_point:
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)
    return alpha * (a @ b) + beta * c


@kernel("Einsum", since=12)
def einsum(*operands: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation.replace(" ", ""), *operands)
