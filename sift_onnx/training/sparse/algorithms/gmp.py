"""Gradual magnitude pruning."""

from __future__ import annotations

from typing import Any

import torch

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.algorithms.dynamic import DynamicSparsityAlgorithm
from sift_onnx.training.sparse.schedules.hyper_parameters import Constant
from sift_onnx.training.sparse.schedules.share import Share
from sift_onnx.training.sparse.selection import patterned
from sift_onnx.training.sparse.selection.masks import make_mask_topk_sparsity

__all__ = ["GMP"]


class GMP(DynamicSparsityAlgorithm):
    """Keep the weights of the largest magnitude, fewer and fewer (Zhu & Gupta 2017, arXiv:1710.01878).

    Nothing enforces that the sparsity rises. Where it falls, the added weights are zeros, all tied: those that come
    first in the tensor are taken.
    """

    def __init__(self, sparsity: Any = None, **kwargs: Any) -> None:
        """Settings; see :class:`DynamicSparsityAlgorithm`.

        Raises:
            UsageError: the sparsity is constant, so that the masks would never change.
        """
        super().__init__(sparsity, **kwargs)
        default = self.sparsity.default
        if isinstance(default, Constant):
            raise UsageError(
                f"gradual magnitude pruning with the constant sparsity {default.value} would never change a mask; give "
                "a schedule, or use the algorithm 'static'"
            )

    def update_mask(self, p: torch.Tensor, mask: torch.Tensor, sparsity: Share) -> torch.Tensor:
        if self.pattern.kind == "unstructured":
            shaper = self.shaper_of(self.current)
            return make_mask_topk_sparsity(p, sparsity, shaper, mask=mask, rule=self.rule, magnitudes=True)
        matrix = self.current.matrix
        count = patterned.room(self.pattern, matrix, self.rule.target(matrix.size, sparsity))
        return patterned.choose_mask(self.pattern, matrix, count, p.abs())
