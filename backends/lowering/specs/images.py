"""Operators that give images of other sizes or channels, without weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from sift_onnx.backends.lowering.dims import Dim, names_in
from sift_onnx.backends.lowering.resampling import AxisMap, OpenPadding, OpenSampling, OpenSlicing, Padding, Sampling
from sift_onnx.backends.lowering.specs.windows import Pads, Pair

__all__ = ["Channels", "DepthToSpace", "GlobalPool", "GridSample", "LinearResize", "PixelCopy"]


_OPEN = (OpenPadding, OpenSampling, OpenSlicing)


@dataclass(frozen=True)
class GlobalPool:
    """Mean or sum over neighbouring axes.

    Attributes:
        keep_axes: whether one position is left of each.
        axes: which ones, the first not among them.
        sums: whether it is a sum.
    """

    keep_axes: bool = True
    axes: tuple[int, ...] = (2, 3)
    sums: bool = False


@dataclass(frozen=True)
class Channels:
    """Some channels of x, in an order of their own.

    Attributes:
        taken: which ones.
        axis: that they lie along.
    """

    taken: tuple[int, ...] = field(repr=False)
    axis: int


@dataclass(frozen=True)
class DepthToSpace:
    """Channels that become the pixels of a block of the result.

    Attributes:
        block: its height and width.
        depth_first: whether the channels of one pixel are adjacent, ONNX's DCR, or those of one block, CRD.
    """

    block: Pair
    depth_first: bool = False


@dataclass(frozen=True)
class _OfAxes:
    """What is done along height and width, which may follow from sizes that a run knows."""

    height: AxisMap
    width: AxisMap

    def names(self) -> set[str]:
        """Of the sizes that a run has to know."""
        return set().union(*map(names_in, self.asked()))

    def asked(self) -> tuple[Dim, ...]:
        """Those that a run has to know."""
        return tuple(size for axis in (self.height, self.width) if isinstance(axis, _OPEN) for size in axis.asked())

    def bound(self, known: Mapping[Dim, int]) -> Self:
        """With the sizes that are ``known``, all of which it has."""
        rows, columns = (axis.bound(known) if isinstance(axis, _OPEN) else axis for axis in (self.height, self.width))
        return replace(self, height=rows, width=columns) if (rows, columns) != (self.height, self.width) else self


@dataclass(frozen=True)
class PixelCopy(_OfAxes):
    """Pixels of x at other places of the same channel; ``fill`` where there is none.

    With ``follows``, height and width of the result are those of the second operand, which is read for these alone.
    """

    height: AxisMap
    width: AxisMap
    fill: float = 0.0
    follows: bool = False

    @property
    def pads(self) -> Pads | None:
        """Pixels of ``fill`` that it adds at the top, left, bottom and right; None if it copies others."""
        rows, columns = self.height, self.width
        if not (isinstance(rows, Padding) and isinstance(columns, Padding) and rows.mode == columns.mode == "constant"):
            return None
        return rows.before, columns.before, rows.after, columns.after


@dataclass(frozen=True)
class LinearResize(_OfAxes):
    """Pixels between those of x, by linear interpolation along height and width; ``follows`` as above."""

    height: Sampling | OpenSampling
    width: Sampling | OpenSampling
    follows: bool = False


@dataclass(frozen=True)
class GridSample:
    """Pixels of x at the positions of the second operand, [n, height, width, 2]: x and y, from -1 to 1.

    Attributes:
        is_nearest: whether the nearest pixel is taken, or four are interpolated.
        clamps: whether what lies outside is a pixel of the border, or zero.
        aligns_corners: whether -1 and 1 are the centres of the first and last pixels, or their outer edges.
    """

    is_nearest: bool = False
    clamps: bool = False
    aligns_corners: bool = False
