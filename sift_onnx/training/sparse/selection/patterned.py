"""Masks under a pattern (N:M, blocks): drawn, chosen by scores, shrunk and grown without leaving it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sift_onnx.sparsity.patterns.pattern import Pattern
from sift_onnx.sparsity.patterns.weight_matrix import WeightMatrix
from sift_onnx.training.sparse.selection.masks import make_mask_drop_minimum

__all__ = ["choose_mask", "conforms", "draw_mask", "drop_mask", "grow_mask", "room"]

# What the weights that must stay score: above every finite score, and no sum of a block's scores overflows.
_STAYS = float(np.finfo(np.float32).max)


def room(pattern: Pattern, matrix: WeightMatrix, count: int) -> int:
    """The most non-zeros, up to ``count``, that a mask of this pattern can have."""
    fitting = min(count, pattern.capacity(matrix))
    return fitting - fitting % pattern.unit


def draw_mask(pattern: Pattern, matrix: WeightMatrix, count: int, rng: np.random.Generator) -> torch.Tensor:
    """A random mask of ``count`` non-zeros."""
    return _mask(matrix, pattern.draw(matrix, count, rng))


def choose_mask(
    pattern: Pattern, matrix: WeightMatrix, count: int, scores: torch.Tensor, allowed: torch.Tensor | None = None
) -> torch.Tensor:
    """The mask of ``count`` non-zeros and the highest scores, on the device of ``scores``."""
    values = scores.detach().cpu().float().numpy()
    positions = None if allowed is None else np.flatnonzero(allowed.cpu().numpy())
    return _mask(matrix, pattern.choose(matrix, count, values, positions)).to(scores.device)


def drop_mask(
    pattern: Pattern, matrix: WeightMatrix, count: int, scores: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """``mask`` with its ``count`` (rounded down to whole blocks) weights of the highest scores."""
    if pattern.unit > 1:
        return choose_mask(pattern, matrix, count - count % pattern.unit, scores, mask)
    # Any part of an N:M mask is one. To drop all but `count` is to drop a share that floors to the difference.
    nnz = int(torch.count_nonzero(mask))
    return make_mask_drop_minimum(scores, mask, Fraction(max(nnz - count, 0), max(nnz, 1)))[0]


def grow_mask(
    pattern: Pattern, matrix: WeightMatrix, count: int, scores: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """``mask`` and the weights of the highest scores that the pattern allows in addition, ``count`` non-zeros in all.

    A transposable mask may give a weight up where that lets two others in.
    """
    if count <= int(torch.count_nonzero(mask)):
        return mask.clone()
    return choose_mask(pattern, matrix, count, scores.detach().float().masked_fill(mask, _STAYS))


def conforms(pattern: Pattern, matrix: WeightMatrix, mask: torch.Tensor) -> bool:
    """Whether ``mask`` is one of this pattern."""
    positions = np.flatnonzero(mask.cpu().numpy())
    return pattern.misfit(matrix) is None and pattern.capacity(matrix, positions) == positions.size


def _mask(matrix: WeightMatrix, positions: npt.NDArray[Any]) -> torch.Tensor:
    mask = np.zeros(matrix.size, dtype=np.bool_)
    mask[positions] = True
    return torch.from_numpy(mask).reshape(matrix.shape)
