"""Transposable N:M masks: at most N of each M consecutive weights, along rows and along columns.

The matrix is cut into M x M blocks, each with at most N non-zeros in a row and in a column, so that the transpose,
which the backward pass multiplies by, is an N:M matrix too (Hubara et al. 2021, "Accelerated sparse neural training").
Blocks at the edges of a matrix are smaller where M does not divide its sizes.

A block is filled greedily, best scores first, which reaches half of the best sum at least (their 2-approximation),
and then completed by exchanges, so that it is as full as a block of its size can be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.sparsity.patterns.ranking import FORBIDDEN
from sift_onnx.sparsity.patterns.weight_matrix import Positions, WeightMatrix, ascending
from sift_onnx.weights.sparse import sample_positions

__all__ = ["capacity", "draw", "strongest"]

Array = npt.NDArray[Any]

# Weights that are looked at together.
_CHUNK = 1 << 20


def capacity(matrix: WeightMatrix, n: int, m: int) -> int:
    """The most non-zeros that a transposable mask can have."""

    def blocks(length: int) -> list[tuple[int, int]]:
        return [(length // m, m), (1, length % m)]

    return matrix.slices * sum(
        vertical * horizontal * min(rows * min(n, columns), columns * min(n, rows))
        for vertical, rows in blocks(matrix.outputs)
        for horizontal, columns in blocks(matrix.inputs)
    )


def draw(matrix: WeightMatrix, n: int, m: int, count: int, rng: np.random.Generator) -> Positions:
    """A random transposable mask of ``count`` non-zeros.

    The fullest mask for random scores, at the smallest ``n`` that holds ``count``, loses at random what is too much, so
    that rows and columns of blocks are filled alike. Every mask of that ``n`` can come out, but some are likelier
    than others.

    Raises:
        ValueError: ``count`` is negative or more than :func:`capacity`.
    """
    most = capacity(matrix, n, m)
    if not 0 <= count <= most:
        raise ValueError(f"cannot choose {count} weights where transposable {n}:{m} leaves {most}")
    least = next(i for i in range(n + 1) if capacity(matrix, i, m) >= count)
    if not least:
        return ascending([], matrix.size)
    columns = matrix.shape[max(matrix.out_axis, matrix.in_axis)]
    full = _full_mask(matrix, least, m, lambda _, rows: rng.random((rows.stop - rows.start, columns), dtype=np.float32))
    return full[sample_positions(full.size, count, rng)]


def strongest(matrix: WeightMatrix, n: int, m: int, scores: Array) -> Positions:
    """The positions of a mask that is as full as can be and prefers high scores, ascending.

    Of equal scores those that come first are preferred.

    Args:
        matrix: of the weight.
        n: the most non-zeros among ``m``.
        m: rows and columns of a block.
        scores: of the weight's shape, finite, or :data:`~sift_onnx.sparsity.patterns.ranking.FORBIDDEN`.
    """
    planes = [plane if matrix.out_axis < matrix.in_axis else plane.T for plane in matrix.planes(scores)]
    return _full_mask(matrix, n, m, lambda i, rows: planes[i][rows])


def _full_mask(matrix: WeightMatrix, n: int, m: int, scores: Callable[[int, slice], Array]) -> Positions:
    """The mask for ``scores``, which are given slice by slice for some rows, all columns.

    Rows are the axis that is stored first, that of outputs or of inputs, so that within a block, too, weights
    that come first in the tensor are preferred.
    """
    first, last = sorted((matrix.out_axis, matrix.in_axis))
    parts = []
    for i, origin in enumerate(matrix.origins()):
        for band in _bands(matrix.shape[first], matrix.shape[last], m):
            mask = _band_mask(scores(i, band), n, m)
            row, column = np.nonzero(mask)
            parts.append(origin + (row + band.start) * matrix.stride(first) + column * matrix.stride(last))
    return ascending(parts, matrix.size)


def _bands(rows: int, columns: int, m: int) -> Iterator[slice]:
    """Rows that are looked at together: many whole blocks, or the shorter blocks of the last rows."""
    whole = rows - rows % m
    step = max(1, _CHUNK // max(m * columns, 1)) * m
    for start in range(0, whole, step):
        yield slice(start, min(start + step, whole))
    if whole < rows:
        yield slice(whole, rows)


def _band_mask(scores: Array, n: int, m: int) -> npt.NDArray[np.bool_]:
    """The mask of a band of blocks, side by side and one above the other."""
    mask = np.zeros(scores.shape, dtype=np.bool_)
    height = min(m, len(scores))
    whole = scores.shape[1] - scores.shape[1] % m
    for start, stop, width in ((0, whole, m), (whole, scores.shape[1], scores.shape[1] - whole)):
        if start == stop:
            continue
        grid = (len(scores) // height, height, (stop - start) // width, width)
        blocks = scores[:, start:stop].reshape(grid).swapaxes(1, 2).reshape(-1, height, width)
        chosen = _fill_blocks(blocks, n).reshape(grid[0], grid[2], height, width)
        mask[:, start:stop] = chosen.swapaxes(1, 2).reshape(len(scores), stop - start)
    return mask


def _fill_blocks(scores: Array, n: int) -> npt.NDArray[np.bool_]:
    """Full masks of blocks ``[blocks, rows, columns]``: at most ``n`` in each row and in each column."""
    count, rows, columns = scores.shape
    limits = min(n, columns), min(n, rows)
    mask = np.zeros((count, rows * columns), dtype=np.bool_)
    in_row, in_column = np.zeros((count, rows), dtype=np.int32), np.zeros((count, columns), dtype=np.int32)
    flat = scores.reshape(count, -1)
    order = np.argsort(-flat, axis=1, kind="stable")
    every = np.arange(count)
    for rank in range(rows * columns):
        place = order[:, rank]
        row, column = place // columns, place % columns
        fits = (in_row[every, row] < limits[0]) & (in_column[every, column] < limits[1])
        fits &= flat[every, place] > FORBIDDEN
        mask[every, place] = fits
        in_row[every, row] += fits
        in_column[every, column] += fits
    blocks = mask.reshape(scores.shape)
    _complete(blocks, scores, *limits)
    return blocks


def _complete(mask: npt.NDArray[np.bool_], scores: Array, row_limit: int, column_limit: int) -> None:
    """Exchange one non-zero for two, at the best price, until no row and column lack one.

    Let row ``r`` and column ``c`` lack one after the greedy choice. All columns ``c'`` that ``r`` is not in are full,
    and so are all rows ``r'`` that ``c`` is not in, or the greedy choice would have taken ``(r, c')`` or ``(r', c)``.
    Some ``(r', c')`` is set: else the ``column_limit`` non-zeros of a ``c'`` would all lie in rows that ``c`` is in,
    and these are fewer. So ``(r', c')`` can always make way for ``(r, c')`` and ``(r', c)``; only where one of these is
    forbidden, longer exchanges are needed.
    """
    allowed = scores > FORBIDDEN
    settled = np.zeros(len(mask), dtype=np.bool_)
    while True:
        short_rows = mask.sum(axis=2) < row_limit
        short_columns = mask.sum(axis=1) < column_limit
        short = np.flatnonzero(short_rows.any(axis=1) & short_columns.any(axis=1) & ~settled)
        if not short.size:
            return
        which = np.arange(short.size)
        row, column = short_rows[short].argmax(axis=1), short_columns[short].argmax(axis=1)
        active, worth, free = mask[short], scores[short].astype(np.float64), (allowed & ~mask)[short]
        possible = active & free[which, row][:, None, :] & free[which, :, column][:, :, None]
        gain = np.full(active.shape, FORBIDDEN)
        added = worth[which, row][:, None, :] + worth[which, :, column][:, :, None]
        np.subtract(added, worth, out=gain, where=possible)
        other_row, other_column = np.divmod(gain.reshape(short.size, -1).argmax(axis=1), mask.shape[2])
        found = possible[which, other_row, other_column]
        block, row, column = short[found], row[found], column[found]
        other_row, other_column = other_row[found], other_column[found]
        mask[block, other_row, other_column] = False
        mask[block, row, other_column] = True
        mask[block, other_row, column] = True
        for block_index in short[~found]:
            while _augment(mask[block_index], allowed[block_index], row_limit, column_limit):
                pass
            settled[block_index] = True


def _augment(mask: npt.NDArray[np.bool_], allowed: npt.NDArray[np.bool_], row_limit: int, column_limit: int) -> bool:
    """Add a non-zero to a block along a shortest augmenting path; False when the block holds the most it can."""
    rows: deque[int] = deque(np.flatnonzero(mask.sum(axis=1) < row_limit).tolist())
    column_of: dict[int, int | None] = dict.fromkeys(rows)  # how a row was reached: it gives up that column
    row_of: dict[int, int] = {}  # how a column was reached: it takes that row in
    full = mask.sum(axis=0) >= column_limit
    while rows:
        row = rows.popleft()
        for column in np.flatnonzero(allowed[row] & ~mask[row]).tolist():
            if column in row_of:
                continue
            row_of[column] = row
            if not full[column]:
                end: int | None = column
                while end is not None:
                    mask[row_of[end], end] = True
                    given_up = column_of[row_of[end]]
                    if given_up is not None:
                        mask[row_of[end], given_up] = False
                    end = given_up
                return True
            for other in np.flatnonzero(mask[:, column]).tolist():
                if other not in column_of:
                    column_of[other] = column
                    rows.append(other)
    return False
