"""CSR times activations, computed as the machine would: in float32, or in fp16 in the order of arrival."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["CsrMatrix", "im2col", "multiply", "multiply_in_arrival_order", "output_sizes"]

Array = npt.NDArray[Any]

# Products that are held at once.
_CHUNK = 1 << 22


@dataclass(frozen=True, eq=False)
class CsrMatrix:
    """A sparse matrix ``[rows, width]`` with its values.

    Attributes:
        indptr: ``[rows + 1]``.
        columns: ``[nnz]``, ascending within a row.
        values: ``[nnz]``.
        width: number of columns.
    """

    indptr: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    values: Array
    width: int

    @classmethod
    def of(cls, rows: Array, columns: Array, values: Array, height: int, width: int) -> CsrMatrix:
        """From coordinates in any order."""
        order = np.lexsort((columns, rows))
        indptr = np.zeros(height + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=height), out=indptr[1:])
        return cls(indptr, columns[order].astype(np.int64), values[order], width)


def multiply(matrix: CsrMatrix, x: Array) -> Array:
    """``matrix @ x``: one AXPY per non-zero, row by row.

    Args:
        matrix: ``[rows, width]``.
        x: ``[width, tokens]``, of the dtype that sums have.

    Returns:
        ``[rows, tokens]``.
    """
    rows, tokens = len(matrix.indptr) - 1, x.shape[1]
    out = np.zeros((rows, tokens), x.dtype)
    step = max(1, _CHUNK // max(tokens, 1))
    filled = np.flatnonzero(np.diff(matrix.indptr))
    values = matrix.values.astype(x.dtype, copy=False)
    for some in _stretches(filled, matrix.indptr, step):
        first, last = matrix.indptr[some[0]], matrix.indptr[some[-1] + 1]
        products = x[matrix.columns[first:last]]
        products *= values[first:last, None]
        out[some] = np.add.reduceat(products, matrix.indptr[some] - first, axis=0)
    return out


def _stretches(rows: npt.NDArray[np.int64], indptr: npt.NDArray[np.int64], most: int) -> Iterator[Array]:
    """Consecutive ``rows``, about ``most`` non-zeros at a time."""
    begin = 0
    while begin < len(rows):
        end = int(np.searchsorted(indptr[rows + 1], indptr[rows[begin]] + most, side="right"))
        end = max(end, begin + 1)
        yield rows[begin:end]
        begin = end


def multiply_in_arrival_order(matrix: CsrMatrix, x: Array, shard: Array, owner: Array) -> Array:
    """``matrix @ x`` in fp16 with one rounding per multiply-accumulate, in the order in which a grid adds up.

    Each grid column adds its non-zeros in the order of their columns; then partial sums go around the row of cores,
    from the neighbour of the owner to the owner.

    Args:
        matrix: ``[rows, width]``.
        x: ``[width, tokens]``; rounded to fp16.
        shard: grid column of each matrix column, ``[width]``.
        owner: grid column that owns each row, ``[rows]``.

    Returns:
        ``[rows, tokens]``, fp16.
    """
    rows, tokens = len(matrix.indptr) - 1, x.shape[1]
    activations = x.astype(np.float16).astype(np.float32)
    weights = matrix.values.astype(np.float16).astype(np.float32)
    row = np.repeat(np.arange(rows), np.diff(matrix.indptr))
    count = int(shard.max(initial=0)) + 1
    # Where on its way around the row of cores a partial sum meets this column.
    place = (shard[matrix.columns] - owner[row] - 1) % count
    order = np.lexsort((matrix.columns, place, row))
    row, place, columns, weights = row[order], place[order], matrix.columns[order], weights[order]
    segment = row * count + place
    starts = np.flatnonzero(np.diff(segment, prepend=-1))
    lengths = np.diff(np.append(starts, len(segment)))
    sums = np.zeros((len(starts), tokens), np.float16)
    for step in range(int(lengths.max(initial=0))):
        active = np.flatnonzero(lengths > step)
        at = starts[active] + step
        # A product of two fp16 numbers is exact in float32.
        product = weights[at, None] * activations[columns[at]]
        sums[active] = (sums[active].astype(np.float32) + product).astype(np.float16)
    out = np.zeros((rows, tokens), np.float16)
    first = np.searchsorted(row[starts], np.arange(rows + 1))
    for step in range(int(np.diff(first).max(initial=0))):
        active = np.flatnonzero(np.diff(first) > step)
        out[active] = out[active] + sums[first[active] + step]
    return out


def output_sizes(
    spatial: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int]
) -> list[int]:
    """Spatial sizes of a convolution's output; ``pads`` has the begins first, then the ends."""
    count = len(spatial)
    return [
        (n + pads[i] + pads[count + i] - (k - 1) * d - 1) // s + 1
        for i, (n, k, s, d) in enumerate(zip(spatial, kernel, strides, dilations, strict=True))
    ]


def im2col(
    x: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int]
) -> Array:
    """The activations of a convolution as a matrix.

    Args:
        x: ``[batch, channels, *spatial]``.
        kernel: spatial sizes.
        strides: one per spatial axis.
        dilations: one per spatial axis.
        pads: begins of all spatial axes, then ends.

    Returns:
        ``[channels * taps, batch * pixels]``.
    """
    count = len(kernel)
    sizes = output_sizes(x.shape[2:], kernel, strides, dilations, pads)
    padded = np.pad(x, [(0, 0), (0, 0), *((pads[i], pads[count + i]) for i in range(count))])
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(2, 2 + count)))
    steps = tuple(slice(0, s * n, s) for s, n in zip(strides, sizes, strict=True))
    windows = windows[(slice(None), slice(None), *steps, *(slice(None, None, d) for d in dilations))]
    # [batch, channels, *pixels, *taps] -> [channels, *taps, batch, *pixels]
    order = (1, *range(2 + count, 2 + 2 * count), 0, *range(2, 2 + count))
    return windows.transpose(order).reshape(x.shape[1] * math.prod(kernel), x.shape[0] * math.prod(sizes))
