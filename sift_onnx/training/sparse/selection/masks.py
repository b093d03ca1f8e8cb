"""Masks from scores: the building blocks that algorithms are made of.

Names and arguments are those of ``cstorch.sparse.utils``. Scores are tensors of a parameter's shape; comparisons are
made in single precision, or double for double scores. What differs from cstorch: counts are whole numbers by a
:class:`~sift_onnx.training.sparse.selection.counts.CountRule`, ties go to active weights and then to lower flat
indices, NaN comes last, and each balanced group is counted for itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from sift_onnx.training.sparse.schedules.share import Share, ShareLike
from sift_onnx.training.sparse.selection.counts import EXACT, CountRule
from sift_onnx.training.sparse.selection.largest import largest
from sift_onnx.training.sparse.selection.shapers import ScoreFlattener, Unshape

__all__ = ["Shaper", "comparable", "make_mask_drop_minimum", "make_mask_grow_maximum", "make_mask_topk_sparsity"]

Shaper = Callable[[torch.Tensor], tuple[torch.Tensor, Unshape]]


def make_mask_topk_sparsity(
    score: torch.Tensor,
    sparsity: ShareLike,
    score_shaper: Shaper | None = None,
    *,
    mask: torch.Tensor | None = None,
    rule: CountRule = EXACT,
    magnitudes: bool = False,
) -> torch.Tensor:
    """The mask of the highest scores.

    Args:
        score: one per weight.
        sparsity: share of weights that the mask leaves out; clamped to [0, 1].
        score_shaper: lays out which scores compete; all of them if None.
        mask: the mask so far; its weights win ties.
        rule: how weights are counted.
        magnitudes: the scores are the absolute values of ``score``.

    Returns:
        A bool tensor like ``score``, with ``rule.target(n, sparsity)`` set in each group of ``n`` competitors.
    """
    level = Share(sparsity).clamped()
    shaper = score_shaper or ScoreFlattener()
    rows, unshape = _rows(shaper, comparable(score))
    active = None if mask is None else _rows(shaper, mask)[0]
    count = rule.target(rows.shape[1], level)
    chosen = [largest(row, count, _row(active, i), magnitudes=magnitudes) for i, row in enumerate(rows)]
    return unshape(_stacked(chosen))


def make_mask_drop_minimum(
    score: torch.Tensor,
    mask: torch.Tensor,
    drop_fraction: ShareLike,
    score_shaper: Shaper | None = None,
    *,
    rule: CountRule = EXACT,
    magnitudes: bool = False,
) -> tuple[torch.Tensor, int]:
    """A mask without the active weights of the lowest scores.

    Args:
        score: one per weight; only those of active weights matter.
        mask: the active weights.
        drop_fraction: share of the active weights of each group to drop; clamped to [0, 1].
        score_shaper: lays out which scores compete; all of them if None.
        rule: how weights are counted.
        magnitudes: the scores are the absolute values of ``score``.

    Returns:
        The new mask, a subset of ``mask``, and the number of its weights.
    """
    fraction = Share(drop_fraction).clamped()
    shaper = score_shaper or ScoreFlattener()
    scores, unshape = _rows(shaper, comparable(score))
    active = _rows(shaper, mask)[0]
    kept, total = [], 0
    for row, on in zip(scores, active, strict=True):
        count = rule.keep(int(torch.count_nonzero(on)), fraction)
        kept.append(largest(row, count, candidates=on, magnitudes=magnitudes))
        total += count
    return unshape(_stacked(kept)), total


def make_mask_grow_maximum(
    score: torch.Tensor,
    mask: torch.Tensor,
    sparsity: ShareLike,
    mask_nonzero: object = None,
    score_shaper: Shaper | None = None,
    *,
    preferred: torch.Tensor | None = None,
    rule: CountRule = EXACT,
) -> torch.Tensor:
    """A mask with the inactive weights of the highest scores added, up to a sparsity.

    Args:
        score: one per weight; only those of inactive weights matter.
        mask: the active weights, all of which stay.
        sparsity: of the new mask. If ``mask`` is less sparse already, it is handed back.
        mask_nonzero: what :func:`make_mask_drop_minimum` counted, as cstorch has it; ``mask`` itself is counted anyway.
        score_shaper: lays out which scores compete; all of them if None.
        preferred: weights that win ties, those that were active before a drop, say.
        rule: how weights are counted.

    Returns:
        The new mask.
    """
    level = Share(sparsity).clamped()
    shaper = score_shaper or ScoreFlattener()
    scores, unshape = _rows(shaper, comparable(score))
    active = _rows(shaper, mask)[0]
    liked = None if preferred is None else _rows(shaper, preferred)[0]
    grown = []
    for i, (row, on) in enumerate(zip(scores, active, strict=True)):
        count = rule.target(row.numel(), level) - int(torch.count_nonzero(on))
        grown.append(largest(row, count, _row(liked, i), ~on).logical_or_(on))
    return unshape(_stacked(grown))


def comparable(score: torch.Tensor) -> torch.Tensor:
    """Scores in the precision in which they are compared, without their history."""
    return score.detach() if score.dtype == torch.float64 else score.detach().float()


def _rows(shaper: Shaper, tensor: torch.Tensor) -> tuple[torch.Tensor, Unshape]:
    """The competitors as ``[groups, n]``, whatever dimensions a shaper gives, and the way back."""
    shaped, unshape = shaper(tensor)
    shape = shaped.shape
    return shaped.reshape(-1, shape[-1]), lambda rows: unshape(rows.reshape(shape))


def _stacked(rows: list[torch.Tensor]) -> torch.Tensor:
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)


def _row(rows: torch.Tensor | None, index: int) -> torch.Tensor | None:
    return None if rows is None else rows[index]
