"""Places of values among others, which are int64, and values that are taken by such places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from sift_onnx.backends.lowering.dims import Dim, Dims, bound, names_in
from sift_onnx.backends.lowering.specs.windows import Pair

__all__ = [
    "ArgExtreme",
    "CastIntegers",
    "GatherElements",
    "GatherRows",
    "ReduceExtreme",
    "ScatterElements",
    "TopK",
    "dims_of_extreme",
]


@dataclass(frozen=True)
class ArgExtreme:
    """The place of the largest or smallest value along an axis; that of NaN only if it is the first value.

    Attributes:
        kind: which of the two.
        axis: along which values are compared; -1 is the last one of rows.
        keep_axes: whether the result has one position along it.
        takes_last: of equal values the last one, not the first.
    """

    kind: Literal["max", "min"]
    axis: int
    keep_axes: bool = True
    takes_last: bool = False


@dataclass(frozen=True)
class ReduceExtreme:
    """The largest or smallest value along axes; NaN only if it is the first value.

    Attributes:
        kind: see :class:`ArgExtreme`.
        axes: the first one, and the one behind the last.
        keep_axes: whether the result has one position along them.
    """

    kind: Literal["max", "min"]
    axes: Pair
    keep_axes: bool = True


@dataclass(frozen=True)
class TopK:
    """The places of the k largest or smallest values along an axis, in order.

    Of equal values the first one ranks first. NaN is larger than any number.

    Attributes:
        k: how many.
        axis: see :class:`ArgExtreme`.
        kind: see there.
    """

    k: int
    axis: int
    kind: Literal["max", "min"] = "max"


@dataclass(frozen=True)
class GatherElements:
    """Values of the first operand by their places along an axis: the second operand, of the result's sizes.

    Attributes:
        axis: see :class:`ArgExtreme`.
        repeats: whether the second operand has one position along the axes behind it, for all of the result's.
    """

    axis: int
    repeats: bool = False


@dataclass(frozen=True)
class GatherRows:
    """Rows of a matrix, the second operand, by their places, as a codebook's vectors.

    Attributes:
        sizes: of the second operand's axes behind the first.
        drops: whether the places' last axis, of one position, is not in the result.
    """

    sizes: tuple[int, ...]
    drops: bool = False


@dataclass(frozen=True)
class ScatterElements:
    """Values of the first operand at places along an axis of the result: the second operand, of the first one's sizes.

    What comes to a place where a value is already is combined with it, in the order of the first operand.

    Attributes:
        axis: of the result, from its first one on.
        size: of the result along it; it may be what a run knows by its name.
        reduction: how values are combined, as ONNX names it; with "none", the last one stays.
        repeats: whether the second operand has one position for all of the first one's axes behind ``axis``.
        fill: what the result has at first; None if the third operand has that.
        first: what a place has instead before the first value comes to it; None if that is no other.
    """

    axis: int
    size: Dim
    reduction: Literal["none", "add", "mul", "max", "min"] = "none"
    repeats: bool = False
    fill: float | None = None
    first: float | None = None

    def asked(self) -> tuple[Dim, ...]:
        """The size, which a run may have to know."""
        return (self.size,)

    def names(self) -> set[str]:
        """Of the sizes that a run has to know."""
        return names_in(self.size)

    def bound(self, known: Mapping[Dim, Dim]) -> ScatterElements:
        """With the sizes that are ``known``."""
        return self if isinstance(self.size, int) else replace(self, size=bound(self.size, known))


@dataclass(frozen=True)
class CastIntegers:
    """Integers as floats."""


def dims_of_extreme(spec: ArgExtreme | ReduceExtreme, dims: Dims) -> Dims:
    """Sizes of the result for an operand of ``dims``."""
    if isinstance(spec, ArgExtreme):
        first = spec.axis % len(dims)
        end = first + 1
    else:
        first, end = spec.axes
    return (*dims[:first], *(1,) * (spec.keep_axes * (end - first)), *dims[end:])
