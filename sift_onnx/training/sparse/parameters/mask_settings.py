"""How masks are chosen: by which pattern, in which groups, counted by which rule."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch

from sift_onnx.errors import UsageError
from sift_onnx.sparsity.patterns.pattern import Pattern
from sift_onnx.training.sparse.parameters.sparse_parameter import SparseParameter
from sift_onnx.training.sparse.schedules.share import Share
from sift_onnx.training.sparse.selection import patterned
from sift_onnx.training.sparse.selection.counts import CountRule
from sift_onnx.training.sparse.selection.init_methods import InitMethod
from sift_onnx.training.sparse.selection.largest import largest
from sift_onnx.training.sparse.selection.masks import (
    make_mask_drop_minimum,
    make_mask_grow_maximum,
    make_mask_topk_sparsity,
)
from sift_onnx.training.sparse.selection.shapers import ScoreShaper

__all__ = ["MaskSettings"]


@dataclass(frozen=True)
class MaskSettings:
    """What an algorithm decides about masks before it sees a weight.

    The methods make the masks of single parameters. Scores and masks have the parameter's shape.

    Attributes:
        init_method: how the first mask is made.
        seed: of what is drawn.
        pattern: which weights may be active together.
        rule: how weights are counted.
        score_shaper: which weights of a parameter compete; all of them if None.
    """

    init_method: InitMethod
    seed: int
    pattern: Pattern
    rule: CountRule
    score_shaper: ScoreShaper | None = None

    @property
    def is_structured(self) -> bool:
        """Whether there is a pattern to keep to."""
        return self.pattern.kind != "unstructured"

    def check(self, sparse: SparseParameter) -> None:
        """Refuse a parameter that cannot have such masks.

        Raises:
            UsageError: its shape does not fit the pattern.
        """
        if not self.is_structured:
            return
        if self.score_shaper is not None:
            raise UsageError("balanced groups and a pattern cannot be had together; leave one of them out")
        if len(sparse.shape) < 2:
            raise UsageError(f"{sparse.name!r} is a vector, and pattern {self.pattern} needs matrices; leave it out")
        misfit = self.pattern.misfit(sparse.matrix)
        if misfit is not None:
            raise UsageError(f"{sparse.name!r}: {misfit}; leave it out, or choose another pattern")

    def shaper_of(self, sparse: SparseParameter) -> ScoreShaper | None:
        """Which weights of a parameter compete, along its own feature axes; all of them if None."""
        return None if self.score_shaper is None else self.score_shaper.along(*sparse.feature_axes)

    def room(self, sparse: SparseParameter, sparsity: Share) -> int:
        """Number of active weights that a sparsity asks for, as far as the pattern has room for them."""
        return patterned.room(self.pattern, sparse.matrix, self.rule.target(sparse.matrix.size, sparsity))

    def keep_largest(
        self, sparse: SparseParameter, values: torch.Tensor, sparsity: Share, preferred: torch.Tensor
    ) -> torch.Tensor:
        """The mask of the values of the largest magnitude; ``preferred`` weights win ties without a pattern."""
        if self.is_structured:
            return patterned.choose_mask(self.pattern, sparse.matrix, self.room(sparse, sparsity), values.abs())
        shaper = self.shaper_of(sparse)
        return make_mask_topk_sparsity(values, sparsity, shaper, mask=preferred, rule=self.rule, magnitudes=True)

    def prune_smallest(
        self, sparse: SparseParameter, values: torch.Tensor, mask: torch.Tensor, sparsity: Share
    ) -> torch.Tensor:
        """``mask`` without the active weights of the smallest magnitude, down to a sparsity."""
        if self.is_structured:
            count = self.room(sparse, sparsity)
            return patterned.choose_mask(self.pattern, sparse.matrix, count, values.abs(), mask)
        nnz = int(torch.count_nonzero(mask))
        excess = max(nnz - self.rule.target(mask.numel(), sparsity), 0)
        fraction = Share(Fraction(excess, max(nnz, 1)))
        return make_mask_drop_minimum(values, mask, fraction, self.shaper_of(sparse), magnitudes=True)[0]

    def drop_smallest(
        self, sparse: SparseParameter, values: torch.Tensor, mask: torch.Tensor, fraction: Share
    ) -> torch.Tensor:
        """``mask`` without a share of its weights, those of the smallest magnitude."""
        if self.is_structured:
            keep = self.rule.keep(int(torch.count_nonzero(mask)), fraction)
            return patterned.drop_mask(self.pattern, sparse.matrix, keep, values.abs(), mask)
        shaper = self.shaper_of(sparse)
        return make_mask_drop_minimum(values, mask, fraction, shaper, rule=self.rule, magnitudes=True)[0]

    def grow_largest(
        self, sparse: SparseParameter, scores: torch.Tensor, kept: torch.Tensor, sparsity: Share, before: torch.Tensor
    ) -> torch.Tensor:
        """``kept`` and the inactive weights of the highest scores, up to a sparsity.

        Args:
            sparse: the parameter.
            scores: one per weight; only those of inactive weights matter.
            kept: the active weights, all of which stay.
            sparsity: of the new mask.
            before: the mask before weights were dropped; these win ties without a pattern.
        """
        if self.is_structured:
            count = self.room(sparse, sparsity)
            return patterned.grow_mask(self.pattern, sparse.matrix, count, scores, kept)
        if self.rule.name == "cbsparse":
            # Kept weights score 0 there, not minus infinity: where gradients are zero, too, growth may pick them again,
            # and the mask ends up with fewer weights than it should have.
            count = int((1 - float(sparsity)) * kept.numel() - int(torch.count_nonzero(kept)))
            grown = largest(scores.float().masked_fill(kept, 0).reshape(-1), count)
            return kept | grown.reshape(kept.shape)
        shaper = self.shaper_of(sparse)
        return make_mask_grow_maximum(scores, kept, sparsity, score_shaper=shaper, preferred=before, rule=self.rule)
