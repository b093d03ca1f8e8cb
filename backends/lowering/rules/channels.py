"""Concat, Split, Slice and Gather along the channels of images, or the columns of matrices; Slice of pixels."""

from __future__ import annotations

from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.resampling import Padding, Slicing
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step, View
from sift_onnx.backends.lowering.specs import Channels, Concat, PixelCopy, Reshaped

__all__ = ["concat", "gather", "slice_", "split"]

# A list with the index of each is made.
_MOST_CHANNELS = 1 << 20
# Exporters write the end of an open slice as the largest integer of 32 or 64 bits.
_OPEN_END = (1 << 31) - 1


def concat(node: NodeView) -> Step:
    """Concat of all operands along their channels."""
    positions = tuple(range(len(node.proto.input)))
    axis = int(node.attribute("axis", 0)) % len(node.dims(0))
    view = _view_along(node, axis)
    for position in positions[1:]:
        node.operand(position, view)
    dims = [node.dims(position) for position in positions]
    channels = tuple(size for own in dims if isinstance(size := own[axis], int))
    if len(channels) != len(dims):
        raise NotLowered("the number of channels is unknown")
    if not all(_fit(own, dims[0], axis, view) for own in dims):
        raise NotLowered("its operands are not known to be of one shape but for the channels")
    return node.step(Concat(channels, axis), view, operands=positions)


def _fit(dims: Dims, first: Dims, axis: int, view: View) -> bool:
    """Whether operands are alike but for the channels, as far as is known of height and width: a run compares them."""
    if len(dims) != len(first):
        return False
    for i, (size, other) in enumerate(zip(dims, first, strict=True)):
        is_open = view == "image" and i > 1 and not (isinstance(size, int) and isinstance(other, int))
        if i != axis and size != other and not is_open:
            return False
    return True


def split(node: NodeView) -> tuple[Step, ...]:
    """Split along the channels: a step for each output that something may read."""
    axis = int(node.attribute("axis", 0)) % len(node.dims(0))
    view = _view_along(node, axis)
    channels = _channels(node, axis)
    count = len(node.proto.output)
    sizes = node.integers(1, "split")
    # Where none are given, parts are alike, but for the last one, which may be smaller.
    each = -(-channels // count)
    sizes = sizes or [max(min(each, channels - i * each), 0) for i in range(count)]
    if sum(sizes) != channels or min(sizes) < 1 or len(sizes) != count:
        raise NotLowered(f"it splits {channels} channels into {sizes}")
    steps = []
    for i, name in enumerate(node.proto.output):
        first = sum(sizes[:i])
        if name:
            spec = Channels(tuple(range(first, first + sizes[i])), channels, axis)
            steps.append(Step(spec, (node.input(0),), name, view, view, (node.index,)))
    return tuple(steps)


def slice_(node: NodeView) -> Step:
    """Slice of channels, or of pixels along height and width."""
    names = ("starts", "ends", "axes", "steps")
    starts, ends, axes, steps = (node.integers(1 + i, name) for i, name in enumerate(names))
    rank = len(node.dims(0))
    axes = [axis % rank for axis in axes] if axes else list(range(len(starts)))
    steps = steps or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise NotLowered("its starts, ends, axes and steps do not fit each other")
    slices = {axis: slice(*bounds) for axis, *bounds in zip(axes, starts, ends, steps, strict=True)}
    slices = {axis: part for axis, part in slices.items() if not _is_all(node, axis, part)}
    view = node.operand(0)
    if not slices:
        return node.step(Reshaped(), view)
    if len(slices) == 1 and _is_channel_axis(view, rank, *slices):
        ((axis, part),) = slices.items()
        return _taken(node, axis, view, range(_channels(node, axis))[part])
    if view != "image" or not set(slices) <= {2, 3}:
        raise NotLowered(f"it slices axis {max(slices, key=lambda axis: axis not in (2, 3))}, not channels or pixels")
    height, width = (_pixels(node, axis, slices[axis]) if axis in slices else Padding() for axis in (2, 3))
    return node.step(PixelCopy(height, width), "image")


def gather(node: NodeView) -> Step:
    """Gather of channels, by constant indices."""
    axis = int(node.attribute("axis", 0)) % len(node.dims(0))
    view = _view_along(node, axis)
    places = node.array(1)
    if places is None:
        raise NotLowered(f"its indices are {node.why_not_constant(1)}")
    if places.ndim != 1:
        raise NotLowered(f"it takes channels by indices of {places.ndim} axes")
    channels = _channels(node, axis)
    taken = [int(place) + channels * (place < 0) for place in places]
    if any(not 0 <= channel < channels for channel in taken):
        raise NotLowered(f"it takes channels that are not among the {channels}")
    return _taken(node, axis, view, taken)


def _taken(node: NodeView, axis: int, view: View, channels: range | list[int]) -> Step:
    if not channels:
        raise NotLowered("it takes no channel")
    return node.step(Channels(tuple(channels), _channels(node, axis), axis), view)


def _is_channel_axis(view: View, rank: int, axis: int) -> bool:
    return axis == (1 if view == "image" else rank - 1)


def _view_along(node: NodeView, axis: int) -> View:
    """How the first operand is read, whose channels are to lie along ``axis``."""
    rank = len(node.dims(0))
    view = node.operand(0, node.views.get(node.input(0)) or ("image" if rank == 4 and axis == 1 else "rows"))
    if not _is_channel_axis(view, rank, axis):
        raise NotLowered(f"along axis {axis}; the kernels have that along channels only")
    return view


def _channels(node: NodeView, axis: int) -> int:
    channels = node.dims(0)[axis]
    if not isinstance(channels, int):
        raise NotLowered("the number of channels is unknown")
    if channels > _MOST_CHANNELS:
        raise NotLowered(f"{channels} channels are more than kernels are made for")
    return channels


def _is_all(node: NodeView, axis: int, part: slice) -> bool:
    """Whether nothing of the axis is left out."""
    size = node.dims(0)[axis]
    if isinstance(size, int):
        return list(range(size)[part]) == list(range(size))
    return bool(part.start == 0 and part.step == 1 and part.stop >= _OPEN_END)


def _pixels(node: NodeView, axis: int, part: slice) -> Slicing:
    if isinstance(node.dims(0)[axis], int):
        return Slicing(part.start, part.stop, part.step)
    if part.start < 0 or part.step < 0 or part.stop < _OPEN_END:
        raise NotLowered(f"which pixels of axis {axis} it takes depends on the run")
    return Slicing(part.start, None, part.step)
