"""Where the non-zeros of a weight matrix are (stored, all of them, or sampled), and how they fall on grid columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.dataflow.workloads.matrix_maps import IndexMap, Table
from sift_onnx.weights.sparse import generator, sample_positions

__all__ = [
    "CountMemory",
    "FullPattern",
    "Pattern",
    "SampledPattern",
    "ShardCounts",
    "StoredPattern",
    "coordinates",
    "identity_of",
    "shard_counts",
    "shards_of",
]

Array = npt.NDArray[Any]

# Non-zeros that are counted at once, which bounds the memory of temporaries.
_CHUNK = 1 << 19


@dataclass(frozen=True, eq=False)
class StoredPattern:
    """The mask of a real weight.

    Attributes:
        map: of the matrix.
        indices: flat positions of the active weights in the tensor, ascending.
    """

    map: IndexMap
    indices: Array

    @property
    def nnz(self) -> int:
        """Non-zeros; active zeros count."""
        return len(self.indices)


@dataclass(frozen=True, eq=False)
class FullPattern:
    """Every weight, streamed in order and without indices."""

    map: IndexMap

    @property
    def nnz(self) -> int:
        """All weights."""
        return self.map.size


@dataclass(frozen=True, eq=False)
class SampledPattern:
    """``nnz`` weights at random positions, drawn on demand.

    Attributes:
        map: of the matrix.
        nnz: number of weights.
        seed: of the draw.
        key: names the draw; equal keys give equal masks.
    """

    map: IndexMap
    nnz: int
    seed: int
    key: str


Pattern = StoredPattern | FullPattern | SampledPattern


@dataclass(frozen=True, eq=False)
class ShardCounts:
    """Non-zeros per row of the matrix and column of the grid.

    Attributes:
        values: ``[period, shards]``, integers.
        repeat: how many times these rows follow one another; the matrix has ``period * repeat`` rows.
    """

    values: Array
    repeat: int = 1

    @property
    def rows(self) -> int:
        """Rows of the matrix."""
        return int(self.values.shape[0]) * self.repeat

    @cached_property
    def per_shard(self) -> npt.NDArray[np.int64]:
        """Non-zeros per column of the grid, ``[shards]``."""
        total: npt.NDArray[np.int64] = self.values.sum(axis=0, dtype=np.int64) * self.repeat
        return total


def identity_of(pattern: Pattern) -> tuple[object, ...]:
    """A key that is equal for equal patterns, valid while both are alive."""
    if isinstance(pattern, StoredPattern):
        return ("stored", id(pattern.indices), id(pattern.map))
    if isinstance(pattern, SampledPattern):
        return ("sampled", pattern.key, pattern.seed, pattern.nnz, id(pattern.map))
    return ("full", id(pattern.map))


class CountMemory:
    """:func:`shard_counts` that counts each matrix once; for one workload on grids of one width."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], ShardCounts] = {}

    def __call__(self, pattern: Pattern, shard: Array, shards: int) -> ShardCounts:
        """See :func:`shard_counts`."""
        key = (*identity_of(pattern), shards)
        if key not in self._known:
            self._known[key] = shard_counts(pattern, shard, shards)
        return self._known[key]


def shards_of(index_map: IndexMap, columns: int) -> Array:
    """The column of the grid that holds each column of the matrix, ``[matrix columns]``.

    Shares are contiguous and equal to within one unit. Where there are fewer units than grid columns, the first grid
    columns hold one each and the others nothing.
    """
    units = -(-index_map.columns // index_map.unit)
    used = min(units, columns)
    unit = np.arange(index_map.columns, dtype=np.int64) // index_map.unit
    return (unit * used // units).astype(np.int32)


def shard_counts(pattern: Pattern, shard: Array, shards: int) -> ShardCounts:
    """How the non-zeros of ``pattern`` fall on the columns of the grid.

    Args:
        pattern: the matrix.
        shard: from :func:`shards_of`.
        shards: number of grid columns that hold anything.
    """
    if isinstance(pattern, StoredPattern):
        return ShardCounts(_count_stored(pattern, shard, shards))
    full = _count_full(pattern.map, shard, shards)
    return full if isinstance(pattern, FullPattern) else ShardCounts(_draw_counts(pattern, full))


def _count_stored(pattern: StoredPattern, shard: Array, shards: int) -> Array:
    index_map = pattern.map
    inner = max(1, len(index_map.inner_rows))
    # The usual case by far, in half the time: the row depends on one index, the column on the other.
    separate = not index_map.inner_rows.any() and not index_map.outer_columns.any()
    row_start, column_shard = index_map.outer_rows * shards, shard[index_map.inner_columns] if separate else shard
    counts = np.zeros(index_map.rows * shards, np.int32)
    for begin in range(0, pattern.nnz, _CHUNK):
        indices = pattern.indices[begin : begin + _CHUNK]
        a, b = np.divmod(indices, indices.dtype.type(inner))
        if separate:
            cells = row_start[a] + column_shard[b]
        else:
            columns = index_map.outer_columns[a] + index_map.inner_columns[b]
            cells = row_start[a] + index_map.inner_rows[b] * shards + column_shard[columns]
        counts += np.bincount(cells, minlength=len(counts)).astype(np.int32)
    return counts.reshape(index_map.rows, shards)


def _count_full(index_map: IndexMap, shard: Array, shards: int) -> ShardCounts:
    """Rows differ only by which column offsets they use: the incidence of offsets, times the shards of each offset."""
    by_outer = not index_map.inner_rows.any()
    if by_outer:
        rows, offsets, rest = index_map.outer_rows, index_map.outer_columns, index_map.inner_columns
    else:
        if index_map.outer_rows.any():
            raise ValueError("a map has rows on both sides")
        rows, offsets, rest = index_map.inner_rows, index_map.inner_columns, index_map.outer_columns
    distinct, which = np.unique(offsets, return_inverse=True)
    histograms = np.stack([np.bincount(shard[rest + offset], minlength=shards) for offset in distinct])
    incidence = np.bincount(rows * len(distinct) + which, minlength=index_map.rows * len(distinct))
    incidence = incidence.reshape(index_map.rows, len(distinct))
    if (incidence == incidence[0]).all():
        return ShardCounts((incidence[:1] @ histograms).astype(np.int32), index_map.rows)
    # float64 multiplies through BLAS, exactly: no count comes near 2**53.
    return ShardCounts((incidence.astype(np.float64) @ histograms).astype(np.int32))


def _draw_counts(pattern: SampledPattern, full: ShardCounts) -> Array:
    """Binomial counts per cell, corrected at random cells to exactly ``nnz`` in all."""
    rng = generator(pattern.seed, "dataflow mask", pattern.key, pattern.map.rows, pattern.map.columns)
    room = np.broadcast_to(full.values, (full.repeat, *full.values.shape)).reshape(full.rows, -1)
    density = pattern.nnz / pattern.map.size
    counts = np.empty(room.shape, np.int32)
    if full.repeat > 1 and len(full.values) == 1:
        # One call per distinct size: numpy sets its sampler up for each (n, p).
        for n in np.unique(full.values):
            same = full.values[0] == n
            counts[:, same] = rng.binomial(n, density, (full.rows, int(same.sum())))
    else:
        counts[...] = rng.binomial(room, density)
    flat, limit = counts.reshape(-1), room.reshape(-1)
    missing = pattern.nnz - int(flat.sum(dtype=np.int64))
    while missing:
        step = 1 if missing > 0 else -1
        cells = np.unique(rng.integers(0, flat.size, abs(missing)))
        cells = cells[flat[cells] < limit[cells]] if step > 0 else cells[flat[cells] > 0]
        flat[cells] += step
        missing -= step * len(cells)
    return counts


def coordinates(pattern: Pattern) -> tuple[Table, Table]:
    """Rows and columns of the non-zeros, in the order in which they are streamed: row by row, columns ascending.

    A sampled pattern is drawn position by position.
    """
    if isinstance(pattern, StoredPattern):
        positions = pattern.indices
    elif isinstance(pattern, FullPattern):
        positions = np.arange(pattern.map.size)
    else:
        positions = sample_positions(pattern.map.size, pattern.nnz, generator(pattern.seed, "csr", pattern.key))
    rows, columns = pattern.map.locate(positions)
    order = np.lexsort((columns, rows))
    return rows[order], columns[order]
