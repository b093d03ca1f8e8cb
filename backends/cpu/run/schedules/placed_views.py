"""Values as views of what lies in memory: what is transposed, cut or repeated is copied when an operator reads it.

Each axis of a view is a product of factors (``factors``). So transposing exchanges axes, and a reshape regroups their
factors (``view_moves``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from sift_onnx.backends.cpu.lower.layouts import Layout
from sift_onnx.backends.cpu.run.schedules.factors import Axis, Offsets, axis_of, joined, offsets_of
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape, kernel_shape
from sift_onnx.backends.lowering.rules import View

__all__ = ["PlacedView", "Stored"]


# The first run of a length makes thousands of these: structs are made several times as fast as dataclasses.
class Stored(Struct, frozen=True):
    """A tensor that lies in memory.

    Attributes:
        key: its name in the schedule.
        shape: (n, c, h, w).
        layout: that it has.
    """

    key: str
    shape: Shape
    layout: Layout


class PlacedView(Struct, frozen=True):
    """A value as a view of a tensor.

    Attributes:
        stored: the tensor.
        axes: of the value, as factors.
        offset: floats of the tensor in planes, from its first one to the view's.
    """

    stored: Stored
    axes: tuple[Axis, ...]
    offset: int = 0

    @classmethod
    def of(cls, stored: Stored, dims: Sequence[int]) -> PlacedView:
        """All of a tensor, as a value of ``dims``."""
        return cls(stored, _axes_of(tuple(dims)))

    @property
    def dims(self) -> tuple[int, ...]:
        """Its sizes."""
        return _sizes_of(self.axes)

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the tensor in its order, whatever the sizes."""
        return not self.offset and _are_all_in_order(self.axes, self.stored.shape)

    def repeated(self, dims: Sequence[int]) -> PlacedView:
        """The view as an operand of one of ``dims``: axes of one position are repeated, missing ones are put first."""
        if self.dims == tuple(dims):
            return self
        axes: list[Axis] = [
            (),
        ] * (len(dims) - len(self.axes)) + list(self.axes)
        sizes = (*(1,) * (len(dims) - len(self.axes)), *self.dims)
        return replace(
            self,
            axes=tuple(
                axis if own == size else axis_of(size, 0) for axis, own, size in zip(axes, sizes, dims, strict=True)
            ),
        )

    def transposed_last(self) -> PlacedView:
        """With the last two axes exchanged."""
        return replace(self, axes=(*self.axes[:-2], self.axes[-1], self.axes[-2]))

    def with_pixels(self, axes: Collection[int]) -> PlacedView:
        """As images, whose pixels are the positions of ``axes``; channels are those of all others but the first."""
        pixels = tuple(factor for axis in axes for factor in self.axes[axis])
        others = (axis for i, axis in enumerate(self.axes) if i and i not in axes)
        channels = tuple(factor for axis in others for factor in axis)
        return replace(self, axes=(self.axes[0], channels, pixels, ()))

    def within_rows(self) -> tuple[PlacedView, int]:
        """A view of whole rows that holds this one, of [sequences, tokens, channels], and its first channel there."""
        rows, columns = self.stored.shape[:2]
        is_range = _are_channels_of_rows(self.axes, self.stored.shape) and self.offset + self.dims[2] <= columns
        return (PlacedView.of(self.stored, (rows, columns)), self.offset) if is_range else (self, 0)

    @property
    def is_contiguous(self) -> bool:
        """Whether it is a range of the tensor in its order, of planes."""
        return joined([factor for axis in self.axes for factor in axis]) == axis_of(math.prod(self.dims), 1)

    @property
    def runs(self) -> tuple[Axis, int]:
        """Runs of adjacent values, in the order of the view: the factors between them, and how long each is."""
        factors = joined([factor for axis in self.axes for factor in axis])
        return (factors[:-1], factors[-1][0]) if factors and factors[-1][1] == 1 else (factors, 1)

    def channels_taken(self, view: View) -> list[int] | None:
        """The channels of the tensor that the view has, of all of its images or rows; None if it is something else.

        They are read as ``view``, and the tensor has as many images or rows, and pixels, as the view.
        """
        images, channels, height, width = self.stored.shape
        pixels = height * width
        shape = kernel_shape(self.dims, view)
        if not self.axes or (images, height, width) != (shape[0], *shape[2:]) or not pixels * channels * shape[1]:
            return None
        split = 1 if view == "image" else len(self.axes) - 1
        before = joined([factor for axis in self.axes[:split] for factor in axis])
        behind = joined([factor for axis in self.axes[split + 1 :] for factor in axis])
        if before != axis_of(images, channels * pixels) or behind != axis_of(pixels, 1):
            return None
        floats = self.offset + offsets_of(self.axes[split : split + 1])
        # A view begins in its first image or row.
        if int(floats.max()) >= channels * pixels or any(stride % pixels for _, stride in self.axes[split]):
            return None
        return None if self.offset % pixels else (floats // pixels).tolist()

    def offsets(self, view: View) -> tuple[Offsets, Offsets]:
        """Of each position (row, or pixel of an image) and of each channel, in floats of the tensor in planes."""
        if view == "rows":
            positions, channels = self.axes[:-1], self.axes[-1:]
        else:
            positions, channels = (self.axes[0], *self.axes[2:]), self.axes[1:2]
        return offsets_of(positions) + self.offset, offsets_of(channels)


# Layers that follow each other have the same axes.
_KEPT = 1024


@lru_cache(_KEPT)
def _axes_of(dims: tuple[int, ...]) -> tuple[Axis, ...]:
    """Those of a whole tensor."""
    axes: list[Axis] = []
    stride = 1
    for size in reversed(dims):
        axes.append(axis_of(size, stride))
        stride *= size
    return tuple(reversed(axes))


@lru_cache(_KEPT)
def _sizes_of(axes: tuple[Axis, ...]) -> tuple[int, ...]:
    return tuple(math.prod([size for size, _ in axis]) for axis in axes)


@lru_cache(_KEPT)
def _are_all_in_order(axes: tuple[Axis, ...], shape: Shape) -> bool:
    stride = 1
    for axis in reversed(axes):
        for size, distance in reversed(axis):
            if distance != stride:
                return False
            stride *= size
    return stride == math.prod(shape)


@lru_cache(_KEPT)
def _are_channels_of_rows(axes: tuple[Axis, ...], shape: Shape) -> bool:
    """Whether [sequences, tokens, channels] are all rows of a tensor, with a range of channels."""
    rows, columns = shape[:2]
    sequences, tokens, channels = axes
    return (
        math.prod(shape) == rows * columns
        and joined((*sequences, *tokens)) == axis_of(rows, columns)
        and joined(channels) == axis_of(math.prod([size for size, _ in channels]), 1)
    )
