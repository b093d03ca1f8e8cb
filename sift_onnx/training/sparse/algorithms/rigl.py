"""Rigging the lottery."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.algorithms.drop_grow import DropGrow
from sift_onnx.training.sparse.schedules.numbers import whole
from sift_onnx.training.sparse.selection.host_copies import magnitudes
from sift_onnx.training.sparse.selection.shapers import InputGroupScoreShaper, OutputGroupScoreShaper

__all__ = ["RigL"]


class RigL(DropGrow):
    """Drop the smallest weights, grow those with the largest gradients (Evci et al. 2020, arXiv:1911.11134).

    Gradients are those that the optimizer would see without masks: accumulated, averaged over ranks, unscaled.
    """

    needs_dense_gradients: ClassVar[bool] = True

    def __init__(
        self,
        sparsity: Any = None,
        drop_fraction: Any = 0.3,
        balance_in_groups: int | None = None,
        balance_out_groups: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Settings.

        Args:
            sparsity: see :class:`SparsityAlgorithm`.
            drop_fraction: see :class:`DropGrow`.
            balance_in_groups: number of groups of input features that are to have the same number of weights each.
            balance_out_groups: the same of output features; attention heads, say.
            kwargs: see :class:`DropGrow`.

        Raises:
            UsageError: both kinds of groups, or another setting that is out of its range. Groups that do not divide a
                parameter are found when the algorithm is applied.
        """
        super().__init__(sparsity, drop_fraction, **kwargs)
        for name, groups in (("balance_in_groups", balance_in_groups), ("balance_out_groups", balance_out_groups)):
            if groups is not None and whole(groups, name) < 0:
                raise UsageError(f"{name} is {groups}; it has to be 0 or more")
        if balance_in_groups and balance_out_groups:
            raise UsageError("balance_in_groups and balance_out_groups cannot be had together; leave one of them out")
        if balance_out_groups:
            self.score_shaper = OutputGroupScoreShaper(balance_out_groups)
        elif balance_in_groups:
            self.score_shaper = InputGroupScoreShaper(balance_in_groups)
        self.balance_in_groups, self.balance_out_groups = balance_in_groups, balance_out_groups

    def growth_scores(self, p: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return magnitudes(self.dense_gradient())

    def settings(self) -> dict[str, str]:
        groups = f"{self.balance_in_groups} in, {self.balance_out_groups} out"
        return {**super().settings(), "balanced groups": groups}
