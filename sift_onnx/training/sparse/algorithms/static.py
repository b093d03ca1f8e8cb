"""Static sparsity: one mask for the whole of training."""

from __future__ import annotations

from typing import Any

import torch

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.algorithms.base import SparsityAlgorithm
from sift_onnx.training.sparse.schedules.share import Share

__all__ = ["Static"]


class Static(SparsityAlgorithm):
    """Masks that never change.

    With ``init_method="topk"`` this is pruning before training, with ``from_zeros`` it keeps the mask of a sparse
    checkpoint, with ``densify_at`` it is the first phase of SPDF.
    """

    def __init__(self, sparsity: Any = None, **kwargs: Any) -> None:
        """Settings.

        Args:
            sparsity: share of the weights to leave out, ``0.0 <= sparsity < 1.0``; a float, or a Fraction.
            kwargs: see :class:`SparsityAlgorithm`.

        Raises:
            UsageError: an integer (probably a percentage), a schedule, or out of range.
        """
        if sparsity is not None and not _is_per_parameter(sparsity):
            if isinstance(sparsity, (bool, int, list, tuple, dict)) or callable(sparsity):
                raise UsageError(f"static sparsity is a float such as 0.9, not {sparsity!r}")
            if not 0 <= Share(sparsity) < 1:
                raise UsageError(f"static sparsity {sparsity} is out of range; use 0.0 <= sparsity < 1.0")
        super().__init__(sparsity, **kwargs)

    def update(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.step += 1
        if self.target_sparsity_hooks or self.computed_sparsity_hooks:
            size = sum(sparse.numel for sparse in self.sparse_params.values())
            level = Share(1 - sum(sparse.nnz for sparse in self.sparse_params.values()) / max(size, 1))
            self.target_sparsity_hooks(self, "*", level)
            self.computed_sparsity_hooks(self, "*", level)


def _is_per_parameter(sparsity: Any) -> bool:
    return isinstance(sparsity, dict) and any(isinstance(key, torch.Tensor) for key in sparsity)
