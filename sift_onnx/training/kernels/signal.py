"""Windows and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sift_onnx.training.host import number
from sift_onnx.training.registry import kernel
from sift_onnx.training.tensors import torch_dtype

__all__: list[str] = []


def _window(*coefficients: float) -> Callable[..., Tensor]:
    """A sum of cosines with alternating signs."""

    def run(size: Any, *, output_datatype: int = 1, periodic: int = 1, anchor: Any = None) -> Tensor:
        count = int(number(size))
        angles = torch.arange(count, dtype=torch.float64) * 2 * math.pi / (count if periodic else count - 1)
        values = sum((-1) ** i * c * torch.cos(i * angles) for i, c in enumerate(coefficients))
        assert isinstance(values, Tensor)
        return values.to(torch_dtype(output_datatype)).to(anchor.device if isinstance(anchor, Tensor) else "cpu")

    return run


kernel("HannWindow", since=17, host=(0,))(_window(0.5, 0.5))
kernel("HammingWindow", since=17, host=(0,))(_window(25 / 46, 21 / 46))
kernel("BlackmanWindow", since=17, host=(0,))(_window(0.42, 0.5, 0.08))
