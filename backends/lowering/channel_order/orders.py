"""Orders of axes, and what lists axes or has a value for each of them.

In an order, axis i of the result is the operand's axis ``order[i]``, as in Transpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Kind", "Order", "first_order", "inverse", "turned"]

Order = tuple[int, ...]


class Kind(Enum):
    """How values depend on the order of axes."""

    # Numbers of axes.
    AXES = auto()
    # One value for each axis.
    EACH = auto()
    # Two values for each axis: one of all axes, then the other one of all axes, as the pads of Pad.
    BOTH_ENDS = auto()
    # A tensor that is broadcast against others.
    OPERAND = auto()


def first_order(rank: int) -> Order:
    """From the last axis to the second place."""
    return (0, rank - 1, *range(1, rank - 1))


def inverse(order: Order) -> Order:
    """The way back."""
    return tuple(order.index(axis) for axis in range(len(order)))


def turned(values: npt.NDArray[Any] | Sequence[int] | int, kind: Kind, order: Order) -> npt.NDArray[Any]:
    """What takes the place of ``values`` where axes are in another order.

    Args:
        values: of ``kind``; an operand may have fewer axes.
        kind: how they depend on the order.
        order: from the old axes to the new ones.
    """
    array, rank = np.asarray(values), len(order)
    match kind:
        case Kind.AXES:
            return np.asarray(np.array(inverse(order), array.dtype)[array % rank])
        case Kind.EACH:
            return array.reshape(-1)[list(order)]
        case Kind.BOTH_ENDS:
            return array.reshape(2, rank)[:, list(order)].reshape(-1)
        case Kind.OPERAND:
            return np.ascontiguousarray(array.reshape((1,) * (rank - array.ndim) + array.shape).transpose(order))
