"""What the hooks of a model and its optimizer need of a sparsity algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from sift_onnx.training.sparse.parameters.sparse_parameter import SparseParameter

__all__ = ["HookedAlgorithm"]


class HookedAlgorithm(Protocol):
    """An algorithm, or a group of them, as the hooks see it.

    The hooks call, in each step of the optimizer: ``observe_gradients``, ``takes_weight_step``, then the optimizer
    itself, ``update``, ``densify_if_due``, ``check_ranks`` and ``end_step``.

    Attributes:
        autoupdate: whether the hooks call ``update``.
    """

    autoupdate: bool

    def get_sparse_params(self, obj: torch.Tensor | torch.nn.Module | torch.optim.Optimizer) -> Any:
        """What this algorithm masks of ``obj``."""

    def observe_gradients(self, params: Sequence[SparseParameter]) -> None:
        """Called with the parameters that have a gradient, whole and unmasked, before a step of the optimizer."""

    def wants_gradients(self) -> bool:
        """Whether the coming step needs gradients of inactive weights."""

    def forget_gradients(self) -> None:
        """Called when the gradients that were observed are not those of this step."""

    def takes_weight_step(self) -> bool:
        """Whether the optimizer is to take the coming step."""

    def update(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Update the masks; called after each step of the optimizer."""

    def densify_if_due(self) -> None:
        """Make the masks ones, if this is the step for it."""

    def check_ranks(self) -> bool:
        """Compare the masks of all ranks; False if there is nothing to compare."""

    def end_step(self) -> None:
        """Called when the step is over, or was skipped."""
