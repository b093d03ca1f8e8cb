"""Comparisons, logic, and choice by condition."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sift_onnx.training.registry import kernel

__all__: list[str] = []

_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def _comparison(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def compare(x: Tensor, y: Tensor) -> Tensor:
        if x.dtype == torch.uint64:
            # The order of unsigned numbers is that of signed ones with the highest bit turned over.
            x, y = (t.view(torch.int64) ^ (-(2**63)) for t in (x, y))
        elif x.dtype in _UNSIGNED:
            x, y = x.to(torch.int64), y.to(torch.int64)
        return function(x, y)

    return compare


for _op, _function in {
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
}.items():
    kernel(_op, since=7)(_comparison(_function))

kernel("And", since=7)(torch.logical_and)
kernel("Or", since=7)(torch.logical_or)
kernel("Xor", since=7)(torch.logical_xor)
kernel("Not")(torch.logical_not)
kernel("Where", since=9)(torch.where)
