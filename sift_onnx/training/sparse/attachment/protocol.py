"""What the hooks of a model and its optimizer need of a sparsity algorithm."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from sift_onnx.training.sparse.parameters.sparse_parameter import SparseParameter

__all__ = ["HookedAlgorithm"]


class HookedAlgorithm(Protocol):
    """An algorithm, or a group of them, as the hooks see it.

    In each step of the optimizer they call ``observe_gradients``, ``takes_weight_step``, then the optimizer itself,
    ``update``, ``densify_if_due``, ``check_ranks`` and ``end_step``.

    Attributes:
        autoupdate: whether the hooks call ``update``.
    """

    autoupdate: bool

    @abstractmethod
    def get_sparse_params(self, obj: torch.Tensor | torch.nn.Module | torch.optim.Optimizer) -> Any:
        """What this algorithm masks of ``obj``."""

    @abstractmethod
    def before_forward(self) -> None:
        """Called before each forward pass of the model."""

    @abstractmethod
    def observe_gradients(self, params: Sequence[SparseParameter]) -> None:
        """Called with the parameters that have a gradient, whole and unmasked, before a step of the optimizer."""

    @abstractmethod
    def wants_gradients(self) -> bool:
        """Whether the coming step needs gradients of inactive weights."""

    @abstractmethod
    def forget_gradients(self) -> None:
        """Called when gradients that were observed are of no more use."""

    @abstractmethod
    def takes_weight_step(self) -> bool:
        """Whether the optimizer is to take the coming step."""

    @abstractmethod
    def update(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Update the masks; called after each step of the optimizer.

        Args:
            optimizer: whose parameters are to be updated; all parameters if None. Subclasses may do without it.
        """

    @abstractmethod
    def densify_if_due(self) -> None:
        """Make all masks ones after the last sparse step."""

    @abstractmethod
    def check_ranks(self) -> bool:
        """Compare the masks of all ranks.

        Returns:
            False if there is nothing to compare.

        Raises:
            SparsityStateError: they differ.
        """

    @abstractmethod
    def end_step(self) -> None:
        """Called when a step of the optimizer is over, or was skipped."""
