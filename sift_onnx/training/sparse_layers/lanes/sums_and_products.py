"""Sums, differences and products of two large tensors, where tensors of earlier steps lay.

Torch computes them as fast as memory allows, but gives each result fresh pages, which take several times as long.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sift_onnx.training.compilation import never_compiled
from sift_onnx.training.sparse_layers.kernels import empty, runs_on_kernels

__all__ = ["combine_elements"]

_RUNS: dict[str, Any] = {"add": torch.add, "sub": torch.sub, "mul": torch.mul}


@never_compiled
def combine_elements(kernel: str, a: Tensor, b: Tensor) -> Tensor | None:
    """``add``, ``sub`` or ``mul`` of tensors of one shape; None for anything else."""
    if kernel not in _RUNS or a.shape != b.shape or not (runs_on_kernels(a) and runs_on_kernels(b)):
        return None
    result: Tensor = _Combine.apply(a, b, kernel)  # type: ignore[no-untyped-call]
    return result


def _into_empty(kernel: str, a: Tensor, b: Tensor) -> Tensor:
    out = empty(*a.shape)
    _RUNS[kernel](a, b, out=out)
    return out


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, kernel: str) -> Tensor:
        ctx.kernel = kernel
        if kernel == "mul":
            ctx.save_for_backward(a, b)
        return _into_empty(kernel, a.detach(), b.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        if ctx.kernel != "mul":
            return dy, dy if ctx.kernel == "add" else -dy, None
        a, b = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return (
            _into_empty("mul", dy, b) if wanted[0] else None,
            _into_empty("mul", dy, a) if wanted[1] else None,
            None,
        )
