"""Split, Slice and Gather: ranges of axes are views, pixels and channels in another order are copied."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.lowering.cut_sizes import OPEN_END, counted_from_end, sliced
from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.resampling import Padding, Slicing
from sift_onnx.backends.lowering.rules.moving import moved, view_of_result
from sift_onnx.backends.lowering.rules.open_slices import are_pixels, open_slice
from sift_onnx.backends.lowering.rules.selection import gather_rows, is_lookup, makes_integers
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step, View
from sift_onnx.backends.lowering.specs import (
    Channels,
    PixelCopy,
    Range,
    Reshaped,
    Sliced,
    Spec,
    Transposed,
    result_dims,
)

__all__ = ["gather", "slice_", "split"]

# A list with the index of each is made.
_MOST_CHANNELS = 1 << 20


def split(node: NodeView) -> tuple[Step, ...]:
    """Split into parts of constant sizes: a step for each output that something reads."""
    dims = node.dims(0)
    axis = int(node.attribute("axis", 0)) % len(dims)
    size, names = dims[axis], list(node.proto.output)
    if not isinstance(size, int):
        raise NotLowered("it splits an axis of unknown size")
    # Where none are given, parts are alike, but for the last one, which may be smaller.
    each = -(-size // len(names))
    sizes = node.integers(1, "split") or [max(min(each, size - i * each), 0) for i in range(len(names))]
    if len(sizes) != len(names) or sum(sizes) != size or min(sizes) < 1:
        raise NotLowered(f"its parts {sizes} do not make up an axis of {size}")
    steps = []
    for number, name in enumerate(names):
        if name and (node.graph.readers.get(name) or name in node.graph.outputs):
            first = sum(sizes[:number])
            steps.append(moved(node, Sliced((Range(axis, first, first + sizes[number], of=size),)), name))
    return tuple(steps)


def slice_(node: NodeView) -> Step:
    """Slice by constants, or by sizes."""
    dims = node.dims(0)
    axes, steps = (node.integers(3 + i, name) for i, name in enumerate(("axes", "steps")))
    named = [axis % len(dims) for axis in axes] or list(range(len(dims)))
    found = open_slice(node, named, steps)
    if found is not None:
        return found
    starts, ends = (_bounds(node, 1 + i, name, named) for i, name in enumerate(("starts", "ends")))
    axes = named if axes else named[: len(starts)]
    steps = steps or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise NotLowered("its starts, ends, axes and steps do not fit each other")
    slices = {axis: slice(*bounds) for axis, *bounds in zip(axes, starts, ends, steps, strict=True)}
    slices = {axis: part for axis, part in slices.items() if not _is_all(dims, axis, part)}
    if not slices:
        return node.step(Reshaped(), node.operand(0))
    if are_pixels(node, dims, set(slices)):
        height, width = (_pixels(dims, axis, slices[axis]) if axis in slices else Padding() for axis in (2, 3))
        return node.step(PixelCopy(height, width), node.operand(0, "image"))
    if len(slices) == 1:
        ((axis, part),) = slices.items()
        if part.step < 0 and isinstance(size := dims[axis], int):
            return _channels(node, axis, list(range(size)[part]))
    return moved(node, Sliced(tuple(_range(dims, axis, part) for axis, part in slices.items())), node.output)


def _bounds(node: NodeView, position: int, name: str, axes: list[int]) -> list[int]:
    """Where a slice begins or ends along each axis, if need be counted from its end."""
    found, dims = node.vector(position), node.dims(0)
    if found is None:
        return node.integers(position, name)
    known = [counted_from_end(dims[axis], bound) for axis, bound in zip(axes, found, strict=False)]
    numbers = [bound for bound in known if isinstance(bound, int)]
    return numbers if len(numbers) == len(found) else node.integers(position, name)


def gather(node: NodeView) -> Step | tuple[Step, ...]:
    """Gather of one position, whose axis is dropped, of positions one after the other, or of channels in any order.

    Windows are gathered by places of several axes, and rows of a table by integers of a kernel. GatherND is the same,
    where its places are along the first axis.
    """
    places = node.array(1)
    if places is None and (makes_integers(node, 1) or is_lookup(node)):
        return gather_rows(node)
    if places is None:
        places = node.graph.folded_values(node.input(1))
    if places is None:
        raise NotLowered(f"the places that it gathers are {node.why_not_constant(1)}")
    dims = node.dims(0)
    axis = int(node.attribute("axis", 0)) % len(dims)
    if node.op == "GatherND":
        if node.attribute("batch_dims", 0) or places.ndim != 2 or not places.size:
            raise NotLowered("it gathers along several axes")
        if places.shape[1] > 1:
            return _pairs(node, places)
        places = places[:, 0]
    listed, size = [int(n) for n in places.reshape(-1)], dims[axis]
    if not listed:
        raise NotLowered("it gathers nothing")
    if isinstance(size, int):
        listed = [place + size * (place < 0) for place in listed]
        if min(listed) < 0 or max(listed) >= size:
            raise NotLowered("it gathers positions that are not there")
    if places.ndim > 1:
        return _windows(node, axis, listed, places.shape)
    if len(listed) > 1 and not isinstance(size, int):
        # A slice leaves out what is not there; to gather it is an error.
        raise NotLowered("it gathers several positions of an axis of unknown size")
    if any(b != a + 1 for a, b in pairwise(listed)):
        return _channels(node, axis, listed) if axis == _channel_axis(node, axis) else _positions(node, axis, listed)
    first, end = listed[0], listed[-1] + 1
    taken = _range(dims, axis, slice(first, end or OPEN_END, 1))
    return moved(node, Sliced((taken,), drops=places.ndim == 0), node.output)


def _windows(node: NodeView, axis: int, listed: list[int], shape: tuple[int, ...]) -> tuple[Step, ...]:
    """Positions in any order, as several axes: of an axis that is not that of channels, as it is turned to be."""
    is_channels = axis == _channel_axis(node, axis)
    steps = (_channels(node, axis, listed),) if is_channels else _positions(node, axis, listed)
    *turned, gathered = steps
    gathered = replace(gathered, output=node.between("gathered as one axis"))
    rank = len(node.dims(0))
    before, behind = ([(i, i + 1) for i in places] for places in (range(axis), range(axis + 1, rank)))
    spec = Reshaped((*before, *shape, *behind))
    taken = (*node.dims(0)[:axis], len(listed), *node.dims(0)[axis + 1 :])
    view = view_of_result(node, node.output, result_dims(spec, taken))
    made = Step(spec, (gathered.output,), node.output, gathered.result_view, view, (node.index,))
    return *turned, gathered, made


def _channels(node: NodeView, axis: int, taken: list[int]) -> Step:
    """Channels of images, or columns of matrices, in any order."""
    dims = node.dims(0)
    if axis != _channel_axis(node, axis):
        raise NotLowered(f"in an order of its own along axis {axis}; the kernels have that along channels only")
    view, size = node.operand(0, _view_of_channels(node, axis)), dims[axis]
    if not isinstance(size, int) or not taken:
        raise NotLowered("the number of channels is unknown, or none is taken")
    if max(size, len(taken)) > _MOST_CHANNELS:
        raise NotLowered(f"{size} channels are more than kernels are made for")
    return node.step(Channels(tuple(taken), axis), view)


def _view_of_channels(node: NodeView, axis: int) -> View:
    """How an operand is read of which channels along ``axis`` are taken, if that is their axis."""
    return node.views.get(node.input(0)) or ("image" if len(node.dims(0)) == 4 and axis == 1 else "rows")


def _channel_axis(node: NodeView, axis: int) -> int:
    return 1 if _view_of_channels(node, axis) == "image" else len(node.dims(0)) - 1


def _positions(node: NodeView, axis: int, taken: list[int]) -> tuple[Step, ...]:
    """Positions in any order along an axis that is turned to be that of channels, and back."""
    return _turned(node, (node.input(0), node.dims(0), node.operand(0)), axis, taken)


def _pairs(node: NodeView, places: npt.NDArray[Any]) -> tuple[Step, ...]:
    """Positions along several axes in front, which are one axis of all of their positions."""
    dims, count = node.dims(0), places.shape[-1]
    sizes = [size for size in dims[:count] if isinstance(size, int)]
    if len(sizes) < count or count >= len(dims):
        raise NotLowered("it gathers along several axes of unknown sizes, or single numbers")
    listed = np.where(places < 0, places + sizes, places)
    if (listed < 0).any() or (listed >= sizes).any():
        raise NotLowered("it gathers positions that are not there")
    merged = Reshaped(((0, count), *((axis, axis + 1) for axis in range(count, len(dims)))))
    name = node.between("as one axis")
    first = Step(merged, (node.input(0),), name, node.operand(0), "rows", (node.index,))
    flat = np.ravel_multi_index(tuple(listed.T), tuple(sizes))
    return first, *_turned(node, (name, result_dims(merged, dims), "rows"), 0, [int(place) for place in flat])


def _turned(node: NodeView, operand: tuple[str, Dims, View], axis: int, taken: list[int]) -> tuple[Step, ...]:
    name, dims, view = operand
    rank, size = len(dims), dims[axis]
    if not isinstance(size, int) or max(size, len(taken)) > _MOST_CHANNELS:
        raise NotLowered("the number of positions is unknown, or too large")
    order = (*(i for i in range(rank) if i != axis), axis)
    back = tuple(order.index(i) for i in range(rank))
    result = (*dims[:axis], len(taken), *dims[axis + 1 :])
    names = [name, node.between("turned"), node.between("gathered"), node.output]
    specs: list[tuple[Spec, View, View]] = [
        (Transposed(order), view, "rows"),
        (Channels(tuple(taken), rank - 1), "rows", "rows"),
        (Transposed(back), "rows", view_of_result(node, node.output, result)),
    ]
    return tuple(
        Step(spec, (names[i],), names[i + 1], read, made, (node.index,)) for i, (spec, read, made) in enumerate(specs)
    )


def _is_all(dims: Dims, axis: int, part: slice) -> bool:
    """Whether nothing of the axis is left out."""
    size = dims[axis]
    if isinstance(size, int):
        return range(size)[part] == range(size)
    return bool(part.start == 0 and part.step == 1 and part.stop >= OPEN_END)


def _pixels(dims: Dims, axis: int, part: slice) -> Slicing:
    if isinstance(dims[axis], int):
        return Slicing(part.start, part.stop, part.step)
    stop = None if part.stop >= OPEN_END else part.stop
    if part.step < 0 or sliced(dims[axis], part.start, stop, part.step) is None:
        raise NotLowered(f"which pixels of axis {axis} it takes depends on the run")
    return Slicing(part.start, stop, part.step)


def _range(dims: Dims, axis: int, part: slice) -> Range:
    """The positions that a node takes, forwards."""
    size = dims[axis]
    start, stop, step = part.start, part.stop, part.step
    if step < 1:
        raise NotLowered("it goes backwards")
    if isinstance(size, int):
        places = range(size)[part]
        if not places:
            raise NotLowered("it takes nothing")
        return Range(axis, places.start, places[-1] + 1, step, size)
    if step > 1 and start + 1 == stop:
        step = 1
    if sliced(size, start, stop, step) is None:
        raise NotLowered("it takes a range of an axis of unknown size")
    return Range(axis, start, None if stop >= OPEN_END else stop, step)
