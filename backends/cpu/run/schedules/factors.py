"""Axes of views as products of factors, the slowest first: each a number of positions at a fixed distance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Axis", "Factor", "Offsets", "axis_of", "joined", "offsets_of", "regrouped"]

Offsets = npt.NDArray[np.int64]
# Size and distance: floats of the tensor in planes.
Factor = tuple[int, int]
Axis = tuple[Factor, ...]


def axis_of(size: int, stride: int) -> Axis:
    """An axis of one factor; of none, if it has one position."""
    return () if size == 1 else ((size, stride),)


def joined(factors: Sequence[Factor]) -> Axis:
    """The same positions in as few factors as possible."""
    result: list[Factor] = []
    for size, stride in factors:
        if result and result[-1][1] == size * stride:
            result[-1] = (result[-1][0] * size, stride)
        else:
            result.append((size, stride))
    return tuple(result)


def offsets_of(axes: Sequence[Axis]) -> Offsets:
    """Of all positions of ``axes``, the last one fastest."""
    result = np.zeros(1, np.int64)
    for axis in axes:
        for size, stride in axis:
            result = np.add.outer(result, np.arange(size, dtype=np.int64) * stride).reshape(-1)
    return result


def regrouped(before: Sequence[Axis], dims: Sequence[int]) -> tuple[Axis, ...] | None:
    """The same positions as axes of the sizes ``dims``; None where a factor would have to be cut unevenly."""
    left = [factor for axis in before for factor in axis]
    if 0 in dims:
        return tuple(axis_of(size, 0) for size in dims)
    axes: list[Axis] = []
    for size in dims:
        taken: list[Factor] = []
        need = size
        while need != 1:
            if not left:
                return None
            count, stride = left.pop(0)
            if count and need % count == 0:
                taken.append((count, stride))
                need //= count
            elif need and count % need == 0:
                taken.append((need, stride * (count // need)))
                left.insert(0, (count // need, stride))
                need = 1
            else:
                return None
        axes.append(joined(taken))
    return None if left else tuple(axes)
