"""Calls that make the training of a model sparse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from sift_onnx.training.sparse.algorithms.base import SparsityAlgorithm
from sift_onnx.training.sparse.configure import configure

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["attach", "install_optimizer_apply"]


def attach(
    algorithm: SparsityAlgorithm | Any,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    masks: Mapping[str, ArrayLike | torch.Tensor] | None = None,
) -> SparsityAlgorithm | None:
    """Apply an algorithm to a model and its optimizer; ordinary training loops need nothing else.

    Args:
        algorithm: an algorithm, or what :func:`configure` makes one of.
        model: the model; inside DistributedDataParallel or torch.compile, or not.
        optimizer: any optimizer of torch's kind over its parameters.
        masks: to start from, parameter name to an array that is true where a weight is active, say
            ``sift_onnx.masks(onnx_model)``. Parameters for which the algorithm has no sparsity keep that of their mask.

    Returns:
        The algorithm; None for a configuration with the sparsity None.
    """
    sparsity = algorithm if isinstance(algorithm, SparsityAlgorithm) else configure(algorithm)
    return None if sparsity is None else sparsity.attach(model, optimizer, masks)


def install_optimizer_apply() -> None:
    """Give ``torch.optim.Optimizer`` a method ``apply``, so that loops written for cstorch run as they are.

    ``optimizer.apply(f)`` is ``f.apply(optimizer)``. It changes a class of torch's for the whole process, so nothing
    calls this by default; ``sparsity.apply(optimizer)`` does the same without it.
    """
    torch.optim.Optimizer.apply = _apply  # type: ignore[attr-defined]


def _apply(optimizer: torch.optim.Optimizer, f: Any) -> torch.optim.Optimizer:
    f.apply(optimizer)
    return optimizer
