"""Values as views of what lies in memory: what is transposed, cut or repeated is copied when an operator reads it.

Each axis of a view is a product of factors, the slowest first, and each factor is a number of positions that are a
fixed distance apart. So transposing exchanges axes, and a reshape regroups their factors.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.cpu.lower.layouts import LANES, Layout
from sift_onnx.backends.lowering.rules import Step, View
from sift_onnx.backends.lowering.specs import Moving, Range, Repeated, Reshaped, Sliced, Transposed

__all__ = [
    "PlacedView",
    "Shape",
    "Stored",
    "by_head",
    "input_key",
    "kernel_shape",
    "lane_offsets",
    "mean_run",
    "moved",
    "of_tokens",
    "operand_key",
    "placed_part",
]

Shape = tuple[int, int, int, int]
Offsets = npt.NDArray[np.int64]
# Size and distance: floats of the tensor in planes.
Factor = tuple[int, int]
Axis = tuple[Factor, ...]


def kernel_shape(sizes: Sequence[int], view: View) -> Shape:
    """(n, c, h, w) of a tensor as kernels read it."""
    if view != "rows":
        n, c, h, w = (*(1,) * (4 - len(sizes)), *sizes)
        return (n, c, h, w)
    return (math.prod(sizes[:-1]), sizes[-1] if sizes else 1, 1, 1)


def input_key(name: str, view: View) -> str:
    """Under which an input's sizes are found: it may come in several views."""
    return f"{name}/{view}"


def operand_key(step: Step, position: int, known: Collection[str]) -> str:
    """Under which those of a step's operand are found."""
    name = step.inputs[position]
    return name if name in known else input_key(name, step.view)


@dataclass(frozen=True)
class Stored:
    """A tensor that lies in memory.

    Attributes:
        key: its name in the schedule.
        shape: (n, c, h, w).
        layout: that it has.
    """

    key: str
    shape: Shape
    layout: Layout


@dataclass(frozen=True)
class PlacedView:
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
        axes: list[Axis] = []
        stride = 1
        for size in reversed(dims):
            axes.append(_axis(size, stride))
            stride *= size
        return cls(stored, tuple(reversed(axes)))

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(axis[0][0] if len(axis) == 1 else math.prod(size for size, _ in axis) for axis in self.axes)

    @cached_property
    def is_whole(self) -> bool:
        """Whether it is all of the tensor in its order, whatever the sizes."""
        if self.offset:
            return False
        stride = 1
        for axis in reversed(self.axes):
            for size, distance in reversed(axis):
                if distance != stride:
                    return False
                stride *= size
        return stride == math.prod(self.stored.shape)

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
                axis if own == size else _axis(size, 0) for axis, own, size in zip(axes, sizes, dims, strict=True)
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
        sequences, tokens, channels = self.axes
        is_range = (
            math.prod(self.stored.shape) == rows * columns
            and _joined((*sequences, *tokens)) == _axis(rows, columns)
            and _joined(channels) == _axis(self.dims[2], 1)
            and self.offset + self.dims[2] <= columns
        )
        return (PlacedView.of(self.stored, (rows, columns)), self.offset) if is_range else (self, 0)

    @property
    def is_contiguous(self) -> bool:
        """Whether it is a range of the tensor in its order, of planes."""
        return _joined([factor for axis in self.axes for factor in axis]) == _axis(math.prod(self.dims), 1)

    def channels_taken(self, view: View) -> list[int] | None:
        """The channels of the tensor that the view has, of all of its images or rows; None if it is something else.

        They are read as ``view``, and the tensor has as many images or rows, and pixels, as the view.
        """
        images, channels, height, width = self.stored.shape
        pixels = height * width
        shape = kernel_shape(self.dims, view)
        if (images, height, width) != (shape[0], *shape[2:]) or not pixels * channels * shape[1]:
            return None
        split = 1 if view == "image" else len(self.axes) - 1
        before = _joined([factor for axis in self.axes[:split] for factor in axis])
        behind = _joined([factor for axis in self.axes[split + 1 :] for factor in axis])
        if before != _axis(images, channels * pixels) or behind != _axis(pixels, 1):
            return None
        floats = self.offset + _sums(self.axes[split : split + 1])
        # A view begins in its first image or row.
        if int(floats.max()) >= channels * pixels or any(stride % pixels for _, stride in self.axes[split]):
            return None
        return None if self.offset % pixels else [int(place) for place in floats // pixels]

    def offsets(self, view: View) -> tuple[Offsets, Offsets]:
        """Of each position (row, or pixel of an image) and of each channel, in floats of the tensor in planes."""
        if view == "rows":
            positions, channels = self.axes[:-1], self.axes[-1:]
        else:
            positions, channels = (self.axes[0], *self.axes[2:]), self.axes[1:2]
        return _sums(positions) + self.offset, _sums(channels)


def of_tokens(view: PlacedView, heads_axis: int | None = 1) -> PlacedView:
    """[sequences, tokens, channels] of [sequences, heads, tokens, depth], or of what has no axis of heads.

    Heads may also come behind the tokens, as axis 2.
    """
    if len(view.axes) == 3:
        return view
    sequences, heads, tokens, depth = view.axes
    if heads_axis == 2:
        heads, tokens = tokens, heads
    return replace(view, axes=(sequences, tokens, (*heads, *depth)))


def by_head(view: PlacedView, dims: Sequence[int]) -> PlacedView:
    """The way back, from [sequences, tokens, heads, depth] to ``dims``."""
    sequences, tokens, heads, depth = view.axes
    return replace(view, axes=(sequences, heads, tokens, depth) if len(dims) == 4 else (sequences, tokens, depth))


def moved(view: PlacedView, spec: Moving, dims: Sequence[int]) -> PlacedView | None:
    """The view after a step that moves values, whose result has ``dims``; None where it is no view any more."""
    match spec:
        case Transposed():
            return replace(view, axes=tuple(view.axes[axis] for axis in spec.order))
        case Sliced():
            for taken in spec.ranges:
                cut = _cut(view, taken)
                if cut is None:
                    return None
                view = cut
            dropped = {taken.axis for taken in spec.ranges} if spec.drops else set()
            return replace(view, axes=tuple(axis for i, axis in enumerate(view.axes) if i not in dropped))
        case Repeated():
            return view.repeated(dims)
        case Reshaped() if view.is_whole:
            return PlacedView.of(view.stored, dims)
        case Reshaped():
            axes = _regrouped(view.axes, dims)
            return None if axes is None else replace(view, axes=axes)
    raise AssertionError(f"{type(spec).__name__} moves nothing")


def lane_offsets(positions: Offsets, channels: Offsets, shape: Shape) -> Offsets | None:
    """Positions of a tensor of ``shape`` in lanes, where channels are ``LANES`` times as far apart.

    None where channels of one position are not all of one image or row.
    """
    image = math.prod(shape[1:])
    if not image or not positions.size or not channels.size:
        return positions
    number, within = np.divmod(positions, image)
    if int(within.max()) + int(channels.max()) >= image:
        return None
    in_lanes: Offsets = number // LANES * (image * LANES) + within * LANES + number % LANES
    return in_lanes


def mean_run(positions: Offsets, target: Stored) -> float:
    """How many lanes of ``target`` in a row come from neighbours in memory, on average."""
    n, _, height, width = target.shape
    if target.layout == "images16" and positions.size == n * height * width:
        positions = positions.reshape(n, height * width).T
    steps = np.diff(positions.reshape(-1))
    return float(positions.size / (1 + np.count_nonzero(steps != 1))) if positions.size else 1.0


def placed_part(
    positions: Offsets, dims: Sequence[int], view: View, axis: int, start: int, sizes: Sequence[int]
) -> tuple[Offsets, int]:
    """Positions of a result of ``sizes``, of which a part of ``dims`` comes from ``positions``; its first channel.

    Args:
        positions: of the part.
        dims: of the part, which are the result's but along ``axis``.
        view: of the result.
        axis: along which the part begins at ``start``.
        start: see there.
        sizes: of the result.
    """
    channel_axis = len(sizes) - 1 if view == "rows" else 1
    if axis == channel_axis:
        return positions, start
    own, full = ([size for i, size in enumerate(of) if i != channel_axis] for of in (dims, sizes))
    at = axis if axis < channel_axis else axis - 1
    result = np.full(full, -1, np.int64)
    result[(slice(None),) * at + (slice(start, start + own[at]),)] = positions.reshape(own)
    return result.reshape(-1), 0


def _axis(size: int, stride: int) -> Axis:
    return () if size == 1 else ((size, stride),)


def _sums(axes: Sequence[Axis]) -> Offsets:
    result = np.zeros(1, np.int64)
    for axis in axes:
        for size, stride in axis:
            result = np.add.outer(result, np.arange(size, dtype=np.int64) * stride).reshape(-1)
    return result


def _cut(view: PlacedView, taken: Range) -> PlacedView | None:
    axis, size = view.axes[taken.axis], view.dims[taken.axis]
    places = taken.places(size)
    if places == range(size):
        return view
    offset = view.offset
    if len(axis) == 1:
        stride = axis[0][1]
        left = _axis(len(places), stride * places.step)
        offset += stride * places.start
    elif len(places) == 1:
        left, rest = (), places.start
        for count, stride in reversed(axis):
            offset += rest % count * stride
            rest //= count
    else:
        return None
    return replace(view, axes=(*view.axes[: taken.axis], left, *view.axes[taken.axis + 1 :]), offset=offset)


def _regrouped(before: Sequence[Axis], dims: Sequence[int]) -> tuple[Axis, ...] | None:
    left = [factor for axis in before for factor in axis]
    if 0 in dims:
        return tuple(_axis(size, 0) for size in dims)
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
        axes.append(_joined(taken))
    return None if left else tuple(axes)


def _joined(factors: Sequence[Factor]) -> Axis:
    """The same positions in as few factors as possible."""
    result: list[Factor] = []
    for size, stride in factors:
        if result and result[-1][1] == size * stride:
            result[-1] = (result[-1][0] * size, stride)
        else:
            result.append((size, stride))
    return tuple(result)
