"""Views as loops that kernels walk: what several views have in common, each position at a fixed distance in each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from sift_onnx.backends.cpu.run.schedules.factors import Axis, Factor, joined
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape
from sift_onnx.backends.cpu.run.schedules.placed_views import PlacedView

__all__ = ["ImageView", "Loop", "common_loops", "contiguous", "image_view", "merged", "operand"]


class ImageView(Struct, frozen=True):
    """A view of one image, where the lanes hold as many as there are; of the whole tensor in planes.

    Attributes:
        view: that it is of.
        images: in the lanes; 0 in planes.
        axes: those of the view, without the images, in as few factors as possible.
    """

    view: PlacedView
    images: int
    axes: tuple[Axis, ...]


class Loop(Struct, frozen=True):
    """Positions of an axis, or of a factor of it.

    Attributes:
        axis: its index.
        size: how many positions.
        strides: from one to the next, in each view.
    """

    axis: int
    size: int
    strides: tuple[int, ...]


def image_view(view: PlacedView) -> ImageView | None:
    """``view`` as one image of those in the lanes; None where an image has several lanes."""
    stored = view.stored
    if stored.layout == "planes":
        return ImageView(view, 0, tuple(map(joined, view.axes)))
    images, image = stored.shape[0], math.prod(stored.shape[1:])
    if stored.layout != "images16" or images < 2 or not view.axes or not view.axes[0]:
        return None
    (size, stride), *others = view.axes[0]
    # The images may be one factor with what they are made of.
    if size % images or size * stride != images * image:
        return None
    left: Axis = ((size // images, stride),) if size > images else ()
    axes = (joined((*left, *others)), *map(joined, view.axes[1:]))
    reach = view.offset + sum((size - 1) * stride for axis in axes for size, stride in axis)
    return ImageView(view, images, axes) if reach < image else None


def common_loops(views: Sequence[Sequence[Axis]]) -> list[Loop] | None:
    """Loops over the axes of views that have the same sizes, in order; None where their factors do not fit."""
    loops: list[Loop] = []
    for axis, own in enumerate(zip(*views, strict=True)):
        factors = _common(own)
        if factors is None:
            return None
        loops += [Loop(axis, size, strides) for size, strides in factors]
    return loops


def _common(axes: Sequence[Axis]) -> list[tuple[int, tuple[int, ...]]] | None:
    """The factors of one axis of several views, cut to the same sizes, the slowest first."""
    sizes = {math.prod(size for size, _ in axis) for axis in axes}
    if sizes == {0}:
        return [(0, (0,) * len(axes))]
    left: list[list[Factor]] = [list(joined(axis)) for axis in axes]
    found: list[tuple[int, tuple[int, ...]]] = []
    while any(left):
        least = min((own[-1][0] for own in left if own), default=0)
        strides = []
        for own in left:
            if not own or not least or own[-1][0] % least:
                return None
            size, stride = own.pop()
            strides.append(stride)
            if size > least:
                own.append((size // least, stride * least))
        found.append((least, tuple(strides)))
    return found[::-1]


def merged(loops: Sequence[Loop]) -> tuple[list[int], list[list[int]]]:
    """As few loops as possible over the same positions: their sizes, and their strides in each view."""
    sizes: list[int] = []
    strides: list[tuple[int, ...]] = []
    for loop in loops:
        if sizes and all(outer == loop.size * inner for outer, inner in zip(strides[-1], loop.strides, strict=True)):
            sizes[-1] *= loop.size
            strides[-1] = loop.strides
        else:
            sizes.append(loop.size)
            strides.append(loop.strides)
    count = len(loops[0].strides) if loops else 0
    return sizes, [[own[view] for own in strides] for view in range(count)]


def contiguous(loops: Sequence[Loop], axes: int, order: Sequence[int] | None = None) -> tuple[Axis, ...]:
    """The ``axes`` of a result that has the positions of ``loops`` one after the other, in ``order`` of the loops."""
    strides = [0] * len(loops)
    stride = 1
    for place in reversed(order if order is not None else range(len(loops))):
        strides[place] = stride
        stride *= loops[place].size
    return tuple(
        joined([(loop.size, own) for loop, own in zip(loops, strides, strict=True) if loop.axis == axis])
        for axis in range(axes)
    )


def operand(view: PlacedView, strides: Sequence[int]) -> tuple[Shape, int, list[Any]]:
    """A view as kernels take it: the shape of its tensor, the offset of its first value, and its strides."""
    return view.stored.shape, view.offset, list(strides)
