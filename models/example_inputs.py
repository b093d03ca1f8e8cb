"""Inputs to trace a model with; their values do not matter, their shapes and types do."""

from __future__ import annotations

import torch
from torch import Tensor

from sift_onnx.models.registry import Architecture

__all__ = ["images", "masked_tokens", "tokens"]


def images(architecture: Architecture, batch: int, sequence: int | None) -> tuple[Tensor]:
    """One float32 tensor ``[batch, *input_shape]``."""
    return (torch.zeros(batch, *architecture.input_shape),)


def tokens(architecture: Architecture, batch: int, sequence: int | None) -> tuple[Tensor]:
    """Token ids, an int64 tensor ``[batch, sequence]``."""
    return (torch.zeros(batch, sequence or architecture.input_shape[0], dtype=torch.int64),)


def masked_tokens(architecture: Architecture, batch: int, sequence: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, a mask that masks nothing, and token types: int64 tensors ``[batch, sequence]``."""
    (ids,) = tokens(architecture, batch, sequence)
    return ids, torch.ones_like(ids), torch.zeros_like(ids)
