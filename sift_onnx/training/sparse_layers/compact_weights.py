"""Compact parameters as layers use them; the room of parameters has the class."""

from __future__ import annotations

import importlib
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

__all__ = ["CompactWeight", "compact_parameter", "compact_weight", "dense_parameter"]

_MODULE = "sift_onnx.training.sparse.parameters.compact"


class CompactWeight(Protocol):
    """The active values of a weight, which are its parameter.

    Attributes:
        shape: of the dense tensor.
        indices: flat positions of the values in it, ascending.
        version: increases when the mask changes.
        values: the parameter, a vector.
    """

    shape: torch.Size
    indices: Tensor
    version: int
    values: nn.Parameter

    def dense(self) -> Tensor:
        """The dense tensor."""

    def wants_dense_gradient(self) -> bool:
        """Whether the gradient of inactive weights is wanted too; asked in each backward pass."""

    def take_dense_gradient(self, gradient: Tensor) -> None:
        """Take the gradient of the dense tensor."""


def compact_weight(owner: nn.Module, name: str) -> CompactWeight | None:
    """The compact form of a parameter, or None if it is dense."""
    return cast("CompactWeight | None", _parameters().compact_weight(owner, name))


def compact_parameter(
    owner: nn.Module, name: str, mask: Tensor, optimizer: torch.optim.Optimizer | None
) -> CompactWeight:
    """Make a parameter the vector of its active values."""
    return cast("CompactWeight", _parameters().compact_parameter(owner, name, mask, optimizer))


def dense_parameter(owner: nn.Module, name: str, optimizer: torch.optim.Optimizer | None) -> None:
    """Make a compact parameter dense again."""
    _parameters().dense_parameter(owner, name, optimizer)


def _parameters() -> Any:
    return importlib.import_module(_MODULE)
