"""SET and RigL: drop active weights of small magnitude, grow as many others."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.algorithms.dynamic import DynamicSparsityAlgorithm, Exchange
from sift_onnx.training.sparse.configuration import whole
from sift_onnx.training.sparse.host_tensors import magnitudes
from sift_onnx.training.sparse.parameters.dense_gradient import KeptGradient
from sift_onnx.training.sparse.parameters.sparse_parameter import SparseParameter
from sift_onnx.training.sparse.schedules.hyper_parameters import HyperParameterSchedule, make_hyperparam_schedule
from sift_onnx.training.sparse.schedules.share import Share
from sift_onnx.training.sparse.selection.largest import largest
from sift_onnx.training.sparse.selection.masks import comparable
from sift_onnx.training.sparse.selection.shapers import InputGroupScoreShaper, OutputGroupScoreShaper
from sift_onnx.weights.sparse import generator

__all__ = ["SET", "DropGrow", "RigL"]


class DropGrow(DynamicSparsityAlgorithm):
    """At each update, drop a share of the active weights and grow others until the sparsity is met again.

    A weight that was just dropped may grow again in the same update. Weights that grow start at zero, and so do their
    optimizer states.
    """

    def __init__(
        self,
        sparsity: Any = None,
        drop_fraction: Any = 0.3,
        *,
        regrown: Literal["keep", "zero"] = "keep",
        **kwargs: Any,
    ) -> None:
        """Settings.

        Args:
            sparsity: see :class:`SparsityAlgorithm`.
            drop_fraction: share of the active weights to drop at an update; a number or a schedule, whose values count
                within [0, 1].
            regrown: whether a weight that is dropped and grown by one update keeps its value, as in cstorch, or
                starts at zero like the others.
            kwargs: see :class:`DynamicSparsityAlgorithm`.

        Raises:
            UsageError: a setting is out of its range.
        """
        super().__init__(sparsity, **kwargs)
        if regrown not in ("keep", "zero"):
            raise UsageError(f"regrown {regrown!r} is unknown; choose 'keep' or 'zero'")
        self.drop_fraction = make_hyperparam_schedule(drop_fraction)
        self.resets_regrown = regrown == "zero"
        self._kept: torch.Tensor | None = None

    @abstractmethod
    def growth_scores(self, p: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """How much each weight deserves to grow; a tensor like ``p``, of which only inactive weights matter."""

    def update_mask(self, p: torch.Tensor, mask: torch.Tensor, sparsity: Share) -> torch.Tensor:
        fraction = self._drop_fraction_at(self.step)
        scores = self.growth_scores(p, mask)
        kept = self.mask_settings.drop_smallest(self.current, p, mask, fraction)
        self._kept = kept if self.resets_regrown else None
        return self.mask_settings.grow_largest(self.current, scores, kept, sparsity, before=mask)

    def _drop_fraction_at(self, step: int) -> Share:
        # The paper's code counts its annealing from the first update on.
        since = self.update_schedule.start if self.compat == "cbsparse" else 0
        return self.drop_fraction(step - since).clamped()

    def survivors(self) -> torch.Tensor | None:
        return self._kept

    def schedules(self) -> list[HyperParameterSchedule]:
        return [*super().schedules(), self.drop_fraction]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "drop_fraction": self.drop_fraction.state_dict()}

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        if state_dict.get("drop_fraction"):
            self.drop_fraction.load_state_dict(state_dict["drop_fraction"])

    def settings(self) -> dict[str, str]:
        return {
            **super().settings(),
            "drop_fraction": repr(self.drop_fraction),
            "resets_regrown": str(self.resets_regrown),
        }


class SET(DropGrow):
    """Drop the smallest weights, grow random ones (Mocanu et al. 2018, arXiv:1707.04780).

    What grows depends on seed, name and step alone, so that ranks and resumed runs draw the same.
    """

    def growth_scores(self, p: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rng = generator(self.seed, self.current.name, "grow", self.step)
        return torch.from_numpy(rng.random(tuple(p.shape), dtype="float32")).to(p.device)


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

    def exchange(self, sparse: SparseParameter) -> Exchange | None:
        compact, gradient = sparse.compact, self._dense_gradients.get(sparse.name)
        whole = not isinstance(gradient, KeptGradient) or gradient.places is None
        if compact is None or whole or not self._is_plain() or self.rule.name == "cbsparse":
            return None
        assert isinstance(gradient, KeptGradient) and gradient.places is not None
        keep = self.rule.keep(compact.nnz, self._drop_fraction_at(self.step))
        stays = largest(comparable(compact.values), keep, magnitudes=True)
        count = self.rule.target(sparse.numel, self.level_of(sparse)) - int(torch.count_nonzero(stays))
        # Those that were dropped win ties, and come first in any case.
        dropped = torch.nonzero(~stays).reshape(-1)
        active = gradient.active[dropped]
        scores = torch.cat([active, gradient.others.to(active.dtype)])
        chosen = largest(comparable(scores), count, magnitudes=True)
        stays[dropped] = chosen[: dropped.numel()]
        return stays, gradient.places[chosen[dropped.numel() :]]

    def _is_plain(self) -> bool:
        """Whether weights are dropped and grown as :class:`RigL` does it, all of them in one competition."""
        kind = type(self)
        if kind.growth_scores is not RigL.growth_scores or kind.update_mask is not DropGrow.update_mask:
            return False
        return self.score_shaper is None and not self.mask_settings.is_structured

    def growth_limit(self, name: str) -> int | None:
        # Hooks may change a sparsity just before the update.
        if not self._is_plain() or len(self.target_sparsity_hooks):
            return None
        sparse, step = self.sparse_params[name], self.step + 1
        level = self.levels.of(sparse, self.sparse_params, step, self.pattern)
        kept = self.rule.keep(sparse.nnz, self._drop_fraction_at(step))
        return max(self.rule.target(sparse.numel, level) - kept, 0)

    def settings(self) -> dict[str, str]:
        groups = f"{self.balance_in_groups} in, {self.balance_out_groups} out"
        return {**super().settings(), "balanced groups": groups}
