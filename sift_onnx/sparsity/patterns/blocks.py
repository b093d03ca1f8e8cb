"""Block masks: R output features by C input features are active together, or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.sparsity.patterns.ranking import FORBIDDEN, largest
from sift_onnx.sparsity.patterns.weight_matrix import Positions, WeightMatrix, ascending
from sift_onnx.weights.sparse import sample_positions

__all__ = ["choose", "draw", "whole_blocks"]


def whole_blocks(matrix: WeightMatrix, rows: int, columns: int, allowed: Positions) -> int:
    """Number of blocks all of whose weights are among the flat positions ``allowed``."""
    mask = np.zeros(matrix.size, dtype=np.bool_)
    mask[allowed] = True
    return int(np.count_nonzero(_reduced(matrix, rows, columns, mask, np.logical_and)))


def draw(matrix: WeightMatrix, rows: int, columns: int, count: int, rng: np.random.Generator) -> Positions:
    """A random mask of ``count`` non-zeros, every set of blocks equally likely.

    Raises:
        ValueError: ``count`` is not a multiple of a block, negative, or above the number of weights.
    """
    blocks = sample_positions(matrix.size // (rows * columns), _number(rows, columns, count), rng)
    return _expanded(matrix, rows, columns, _origins(matrix, rows, columns)[blocks])


def choose(matrix: WeightMatrix, rows: int, columns: int, count: int, scores: npt.NDArray[Any]) -> Positions:
    """The blocks of the highest sums of scores, ``count`` non-zeros in all; of equal sums those that come first.

    Args:
        matrix: of the weight.
        rows: output features of a block.
        columns: input features of a block.
        count: of non-zeros.
        scores: of the weight's shape; a block with a weight that is
            :data:`~sift_onnx.sparsity.patterns.ranking.FORBIDDEN` is left out.

    Raises:
        ValueError: ``count`` is not a multiple of a block, or more than there is to choose from.
    """
    sums = _reduced(matrix, rows, columns, scores, np.add)
    origins = _origins(matrix, rows, columns)
    order = np.argsort(origins)
    candidates = order[sums[order] > FORBIDDEN]
    chosen = candidates[largest(sums[candidates], _number(rows, columns, count))]
    return _expanded(matrix, rows, columns, origins[chosen])


def _number(rows: int, columns: int, count: int) -> int:
    blocks, rest = divmod(count, rows * columns)
    if rest:
        raise ValueError(f"{count} non-zeros are not a whole number of {rows}x{columns} blocks")
    return blocks


def _reduced(
    matrix: WeightMatrix, rows: int, columns: int, tensor: npt.NDArray[Any], ufunc: np.ufunc
) -> npt.NDArray[Any]:
    """``ufunc`` over each block, in double precision where it adds; a vector in the order of :func:`_origins`."""
    grid = (matrix.outputs // rows, rows, matrix.inputs // columns, columns)
    dtype = np.float64 if ufunc is np.add else np.bool_
    parts = [ufunc.reduce(p.reshape(grid), axis=(1, 3), dtype=dtype).reshape(-1) for p in matrix.planes(tensor)]
    return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)


def _origins(matrix: WeightMatrix, rows: int, columns: int) -> npt.NDArray[np.int64]:
    """Flat position of the first weight of each block, slice by slice."""
    down = np.arange(0, matrix.outputs, rows, dtype=np.int64) * matrix.stride(matrix.out_axis)
    right = np.arange(0, matrix.inputs, columns, dtype=np.int64) * matrix.stride(matrix.in_axis)
    return (matrix.origins()[:, None, None] + down[:, None] + right).reshape(-1)


def _expanded(matrix: WeightMatrix, rows: int, columns: int, origins: npt.NDArray[np.int64]) -> Positions:
    down = np.arange(rows, dtype=np.int64) * matrix.stride(matrix.out_axis)
    right = np.arange(columns, dtype=np.int64) * matrix.stride(matrix.in_axis)
    return ascending([(origins[:, None, None] + down[:, None] + right).reshape(-1)], matrix.size)
