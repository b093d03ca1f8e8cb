"""What SET and RigL share: drop active weights of small magnitude, grow as many others."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

import torch

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.algorithms.dynamic import DynamicSparsityAlgorithm
from sift_onnx.training.sparse.schedules.hyper_parameters import HyperParameterSchedule, make_hyperparam_schedule
from sift_onnx.training.sparse.schedules.share import Share
from sift_onnx.training.sparse.selection import patterned
from sift_onnx.training.sparse.selection.largest import largest
from sift_onnx.training.sparse.selection.masks import make_mask_drop_minimum, make_mask_grow_maximum

__all__ = ["DropGrow"]


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
        # The paper's code counts its annealing from the first update on.
        since = self.update_schedule.start if self.compat == "cbsparse" else 0
        fraction = self.drop_fraction(self.step - since).clamped()
        scores = self.growth_scores(p, mask)
        if self.pattern.kind != "unstructured":
            kept, new = self._update_pattern(p, mask, sparsity, fraction, scores)
        else:
            shaper = self.shaper_of(self.current)
            kept, _ = make_mask_drop_minimum(p, mask, fraction, shaper, rule=self.rule, magnitudes=True)
            if self.compat == "cbsparse":
                new = self._grow_as_cbsparse(scores, kept, sparsity)
            else:
                new = make_mask_grow_maximum(
                    scores, kept, sparsity, score_shaper=shaper, preferred=mask, rule=self.rule
                )
        self._kept = kept if self.resets_regrown else None
        return new

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

    def _update_pattern(
        self, p: torch.Tensor, mask: torch.Tensor, sparsity: Share, fraction: Share, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        matrix = self.current.matrix
        keep = self.rule.keep(int(torch.count_nonzero(mask)), fraction)
        kept = patterned.drop_mask(self.pattern, matrix, keep, p.abs(), mask)
        count = patterned.room(self.pattern, matrix, self.rule.target(matrix.size, sparsity))
        return kept, patterned.grow_mask(self.pattern, matrix, count, scores, kept)

    def _grow_as_cbsparse(self, scores: torch.Tensor, kept: torch.Tensor, sparsity: Share) -> torch.Tensor:
        # Kept weights score 0 there, not minus infinity: where gradients are zero, too, growth may pick them again, and
        # the mask ends up with fewer weights than it should have.
        count = int((1 - float(sparsity)) * kept.numel() - int(torch.count_nonzero(kept)))
        grown = largest(scores.float().masked_fill(kept, 0).reshape(-1), count)
        return kept | grown.reshape(kept.shape)
