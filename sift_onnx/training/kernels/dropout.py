"""Dropout, which follows the module's mode and not the model's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sift_onnx.training.host import number
from sift_onnx.training.registry import kernel

__all__ = ["Dropout"]


@kernel("Dropout", since=7, host=(1, 2))
class Dropout(nn.Module):
    """Zeros a share of the elements in training mode, and scales the others up; does nothing in evaluation mode.

    The share is an attribute before opset 12 and an input from then on. What the model says of training mode is not
    asked: an export for inference says no, and is going to be trained all the same.
    """

    def __init__(self, ratio: float = 0.5, seed: int | None = None, outputs: int = 1) -> None:
        super().__init__()
        self.ratio = ratio
        self.seed = seed
        self.outputs = outputs

    def forward(self, x: Tensor, ratio: Any = None, training_mode: Any = None) -> tuple[Tensor, Tensor]:
        """The output, and the mask of what was kept."""
        share = self.ratio if ratio is None else float(number(ratio))
        if not self.training or share == 0:
            kept = torch.ones_like(x, dtype=torch.bool) if self.outputs > 1 else x
            return x, kept
        if self.outputs == 1:
            return functional.dropout(x, share), x
        kept = torch.rand(x.shape, device=x.device) >= share
        return x * kept / (1 - share), kept

    def extra_repr(self) -> str:
        return f"ratio={self.ratio}"
