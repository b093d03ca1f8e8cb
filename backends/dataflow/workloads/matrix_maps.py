"""How the weights of a tensor lie in the matrix that multiplies activations.

A convolution becomes a product with the im2col matrix of its input; a grouped one and a stack of matrices become
block-diagonal. Blocks share *super-rows*: row ``j`` of the matrix holds the ``j``-th row of every block. Their columns
are disjoint, since the blocks are reduced at the same time in different parts of the grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["IndexMap", "Table", "conv_maps", "conv_transpose_maps", "matrix_maps"]

Array = npt.NDArray[Any]
Table = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class IndexMap:
    """Row and column of each weight of a tensor seen as ``[outer, inner]``.

    Weight ``(a, b)`` lies at row ``outer_rows[a] + inner_rows[b]`` and column ``outer_columns[a] + inner_columns[b]``.

    Attributes:
        rows: of the matrix; each is reduced along the grid.
        columns: of the matrix; spread over the columns of the grid.
        unit: columns that must not be separated, because they belong to one channel that is not reduced.
        reduced: whether a row's columns may lie in several cores, whose partial sums are then reduced.
        outer_rows: ``[outer]``.
        inner_rows: ``[inner]``.
        outer_columns: ``[outer]``.
        inner_columns: ``[inner]``.
    """

    rows: int
    columns: int
    unit: int
    reduced: bool
    outer_rows: Table
    inner_rows: Table
    outer_columns: Table
    inner_columns: Table

    @property
    def size(self) -> int:
        """Number of weights."""
        return len(self.outer_rows) * len(self.inner_rows)

    def locate(self, positions: Array) -> tuple[Table, Table]:
        """Rows and columns of the weights at flat ``positions``."""
        inner = max(1, len(self.inner_rows))
        a, b = np.divmod(positions, inner)
        return self.outer_rows[a] + self.inner_rows[b], self.outer_columns[a] + self.inner_columns[b]


def _map(rows: Sequence[Table], columns: Sequence[Table], unit: int = 1, reduced: bool = True) -> IndexMap:
    """From one table per axis of the tensor."""
    inner_rows, inner_columns = (_flat_sums(tables[1:]) for tables in (rows, columns))
    height = 1 + sum(int(table.max(initial=0)) for table in rows)
    width = 1 + sum(int(table.max(initial=0)) for table in columns)
    return IndexMap(height, width, unit, reduced, rows[0], inner_rows, columns[0], inner_columns)


def _flat_sums(tables: Sequence[Table]) -> Table:
    """All sums of one entry per table, in row-major order."""
    total = np.zeros(1, np.int64)
    for table in tables:
        total = (total[:, None] + table[None, :]).reshape(-1)
    return total


def _lay_out(tables: list[Table], shape: Sequence[int], axes: Sequence[int], stride: int = 1) -> None:
    """Let positions along ``axes`` follow one another in row-major order, ``stride`` apart."""
    for axis in reversed(axes):
        tables[axis] = np.arange(shape[axis]) * stride
        stride *= shape[axis]


def matrix_maps(shape: Sequence[int], out_axis: int, in_axis: int) -> tuple[IndexMap, IndexMap]:
    """Of a matrix, or of a stack of them: forward, and for the gradient of the input (the transpose).

    Args:
        shape: of the tensor.
        out_axis: its output features.
        in_axis: its input features; every other axis counts the matrices of the stack.
    """
    zeros = [np.zeros(n, np.int64) for n in shape]
    stack = [i for i in range(len(shape)) if i not in (out_axis, in_axis)]
    maps = []
    for row_axis, column_axis in ((out_axis, in_axis), (in_axis, out_axis)):
        rows, columns = list(zeros), list(zeros)
        rows[row_axis] = np.arange(shape[row_axis])
        columns[column_axis] = np.arange(shape[column_axis])
        _lay_out(columns, shape, stack, shape[column_axis])
        maps.append(_map(rows, columns))
    return maps[0], maps[1]


def conv_maps(
    shape: Sequence[int], out_axis: int, in_axis: int, groups: int, strides: Sequence[int]
) -> tuple[IndexMap, IndexMap]:
    """Of a convolution: forward (im2col), and for the gradient of the input.

    The gradient of a strided convolution falls apart into one product per phase of the input pixels modulo the stride,
    to which only the taps of that phase contribute; so every weight is still applied once per output pixel.

    Args:
        shape: of the kernel.
        out_axis: its output channels.
        in_axis: its input channels of one group; every other axis is spatial.
        groups: of the convolution.
        strides: one per spatial axis.
    """
    zeros = [np.zeros(n, np.int64) for n in shape]
    spatial = [i for i in range(len(shape)) if i not in (out_axis, in_axis)]
    taps = math.prod(shape[i] for i in spatial)
    out, fan_in = shape[out_axis], shape[in_axis]
    per_group = out // groups
    o = np.arange(out)

    rows, columns = list(zeros), list(zeros)
    rows[out_axis] = o % per_group
    columns[out_axis] = (o // per_group) * (fan_in * taps)
    columns[in_axis] = np.arange(fan_in) * taps
    _lay_out(columns, shape, spatial)
    # A channel of a depthwise convolution is summed over its taps alone: kept in one core, it needs no reduction.
    depthwise = fan_in == 1 and groups > 1
    forward = _map(rows, columns, taps if depthwise else 1, not depthwise)

    rows, columns = list(zeros), list(zeros)
    phases = [min(s, shape[axis]) for s, axis in zip(strides, spatial, strict=True)]
    rows[in_axis] = np.arange(fan_in) * math.prod(phases)
    columns[out_axis] = o * taps
    _lay_out(columns, shape, spatial)
    phase_stride = 1
    for axis, step, phase in reversed(list(zip(spatial, strides, phases, strict=True))):
        rows[axis] = (np.arange(shape[axis]) % step) * phase_stride
        phase_stride *= phase
    backward = _map(rows, columns, taps * per_group if depthwise else 1, not depthwise)
    return forward, backward


def conv_transpose_maps(shape: Sequence[int], out_axis: int, in_axis: int, groups: int) -> tuple[IndexMap, IndexMap]:
    """Of a transposed convolution: a product per input pixel, whose rows are output channels and taps; its transpose.

    Args:
        shape: of the kernel.
        out_axis: its output channels of one group.
        in_axis: its input channels, of all groups; every other axis is spatial.
        groups: of the convolution.
    """
    zeros = [np.zeros(n, np.int64) for n in shape]
    spatial = [i for i in range(len(shape)) if i not in (out_axis, in_axis)]
    taps = math.prod(shape[i] for i in spatial)
    channels, per_group = shape[in_axis], shape[in_axis] // groups
    c = np.arange(channels)
    depthwise = per_group == 1 and groups > 1
    features = list(zeros)
    features[out_axis] = np.arange(shape[out_axis]) * taps
    _lay_out(features, shape, spatial)

    columns = list(zeros)
    columns[in_axis] = c
    forward = _map(features, columns, reduced=not depthwise)

    rows, columns = list(zeros), list(features)
    rows[in_axis] = c % per_group
    columns[in_axis] = (c // per_group) * (shape[out_axis] * taps)
    return forward, _map(rows, columns, shape[out_axis] * taps if depthwise else 1, not depthwise)
