"""N:M masks: of each M consecutive input features, an output feature reads at most N.

Groups start at the first input feature; where M does not divide their number, the last group is shorter and holds at
most N as well, as if it were padded with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.sparsity.patterns.ranking import FORBIDDEN
from sift_onnx.sparsity.patterns.weight_matrix import Positions, WeightMatrix, ascending
from sift_onnx.weights.sparse import sample_positions

__all__ = ["capacity", "draw", "strongest"]

# Weights that are looked at together.
_CHUNK = 1 << 22


def capacity(matrix: WeightMatrix, n: int, m: int, allowed: Positions | None = None) -> int:
    """The most non-zeros that ``n`` of ``m`` leaves, among the flat positions ``allowed`` where they are given."""
    if allowed is None:
        return matrix.slices * matrix.outputs * int(_group_limits(matrix, n, m).sum())
    groups = -(-matrix.inputs // m)
    # A group is named by the position of its first weight: the others follow at multiples of the stride.
    stride = matrix.stride(matrix.in_axis)
    feature = (allowed // stride) % matrix.inputs
    first = allowed.astype(np.int64) - (feature % m) * stride
    counts = np.unique(first, return_counts=True)[1] if groups else np.empty(0, dtype=np.int64)
    return int(np.minimum(counts, n).sum())


def draw(matrix: WeightMatrix, n: int, m: int, count: int, rng: np.random.Generator) -> Positions:
    """A random mask of ``count`` non-zeros whose groups are filled as evenly as ``n`` and their lengths allow.

    Every group gets the same number of non-zeros, or all that it can hold; what is left goes to groups drawn at random,
    one each. Within a group every subset is equally likely.

    Raises:
        ValueError: ``count`` is negative or more than :func:`capacity`.
    """
    lines = matrix.slices * matrix.outputs
    limits = _group_limits(matrix, n, m)
    levels = [lines * int(np.minimum(limits, level).sum()) for level in range(n + 1)]
    if not 0 <= count <= levels[n]:
        raise ValueError(f"cannot choose {count} weights where {n}:{m} leaves {levels[n]}")
    level = max(i for i, total in enumerate(levels) if total <= count)
    # The groups that can hold one more come first in a line: only its last one is shorter.
    roomy = int(np.count_nonzero(limits > level))
    extra = sample_positions(lines * roomy, count - levels[level], rng).astype(np.int64)
    lengths = _group_lengths(matrix, m)
    parts = []
    for start, stop in _chunks(lines, matrix.inputs):
        wanted = np.tile(np.minimum(limits, level), (stop - start, 1))
        here = extra[slice(*np.searchsorted(extra, [start * roomy, stop * roomy]))]
        if here.size:
            wanted[here // roomy - start, here % roomy] += 1
        mask = np.zeros((stop - start, lengths.size * m), dtype=np.bool_)
        grouped = mask.reshape(stop - start, lengths.size, m)
        whole = matrix.inputs // m
        _fill(grouped[:, :whole], wanted[:, :whole], m, rng)
        if whole < lengths.size:
            _fill(grouped[:, whole:], wanted[:, whole:], int(lengths[-1]), rng)
        parts.append(_positions(matrix, mask, start))
    return ascending(parts, matrix.size)


def strongest(matrix: WeightMatrix, n: int, m: int, scores: npt.NDArray[Any]) -> Positions:
    """The positions of the ``n`` best scores of every group, ascending; of equal scores those that come first.

    Args:
        matrix: of the weight.
        n: the most non-zeros in a group.
        m: the length of a group.
        scores: of the weight's shape, finite, or :data:`~sift_onnx.sparsity.patterns.ranking.FORBIDDEN`.
    """
    parts = []
    groups = -(-matrix.inputs // m)
    for i, plane in enumerate(matrix.planes(scores)):
        for start, stop in _chunks(matrix.outputs, matrix.inputs):
            padded = np.full((stop - start, groups * m), FORBIDDEN, dtype=scores.dtype)
            padded[:, : matrix.inputs] = plane[start:stop]
            grouped = padded.reshape(stop - start, groups, m)
            best = np.argsort(-grouped, axis=-1, kind="stable")[..., :n]
            mask = np.zeros(grouped.shape, dtype=np.bool_)
            np.put_along_axis(mask, best, True, axis=-1)
            mask &= grouped > FORBIDDEN
            parts.append(_positions(matrix, mask.reshape(stop - start, -1), i * matrix.outputs + start))
    return ascending(parts, matrix.size)


def _group_lengths(matrix: WeightMatrix, m: int) -> npt.NDArray[np.int64]:
    starts = np.arange(0, matrix.inputs, m, dtype=np.int64)
    return np.minimum(matrix.inputs - starts, m)


def _group_limits(matrix: WeightMatrix, n: int, m: int) -> npt.NDArray[np.int64]:
    return np.minimum(_group_lengths(matrix, m), n)


def _chunks(lines: int, length: int) -> Iterator[tuple[int, int]]:
    step = max(1, _CHUNK // max(length, 1))
    for start in range(0, lines, step):
        yield start, min(start + step, lines)


def _fill(mask: npt.NDArray[np.bool_], wanted: npt.NDArray[np.int64], length: int, rng: np.random.Generator) -> None:
    """Set ``wanted`` of the first ``length`` entries of each group of ``mask``, every subset equally likely.

    Selection sampling (Knuth, TAOCP 3.4.2, algorithm S): an entry is taken with the probability of what is wanted over
    what is left.
    """
    missing = wanted.astype(np.int16)
    for i in range(length):
        taken = rng.integers(0, length - i, size=missing.shape, dtype=np.int16) < missing
        mask[..., i] = taken
        missing -= taken


def _positions(matrix: WeightMatrix, mask: npt.NDArray[np.bool_], first: int) -> Positions:
    """Flat positions of a mask ``[lines, inputs]`` (or wider) over the lines from ``first`` on, slice by slice."""
    lines = np.arange(first, first + len(mask), dtype=np.int64)
    begin = matrix.origins()[lines // max(matrix.outputs, 1)]
    begin += lines % max(matrix.outputs, 1) * matrix.stride(matrix.out_axis)
    row, column = np.nonzero(mask)
    flat: Positions = begin[row] + column * matrix.stride(matrix.in_axis)
    return flat
