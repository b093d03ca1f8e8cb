"""Inputs to trace a model with; their values do not matter, their shapes and types do."""

from __future__ import annotations

import torch
from torch import Tensor

from sift_onnx.models.registry import Architecture

__all__ = ["images"]


def images(architecture: Architecture, batch: int) -> tuple[Tensor]:
    """One float32 tensor ``[batch, *input_shape]``."""
    return (torch.zeros(batch, *architecture.input_shape),)
