"""Views after what moves values: axes are exchanged, cut, repeated and regrouped, and nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from sift_onnx.backends.cpu.run.schedules.factors import axis_of, regrouped
from sift_onnx.backends.cpu.run.schedules.placed_views import PlacedView
from sift_onnx.backends.lowering.specs import Moving, Range, Repeated, Reshaped, Sliced, Transposed

__all__ = ["by_head", "moved", "of_tokens"]


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
            axes = regrouped(view.axes, dims)
            return None if axes is None else replace(view, axes=axes)
    raise AssertionError(f"{type(spec).__name__} moves nothing")


def _cut(view: PlacedView, taken: Range) -> PlacedView | None:
    axis, size = view.axes[taken.axis], view.dims[taken.axis]
    places = taken.places(size)
    if places == range(size):
        return view
    offset = view.offset
    if not places:
        left = axis_of(0, 1)
    elif len(axis) == 1:
        stride = axis[0][1]
        left = axis_of(len(places), stride * places.step)
        offset += stride * places.start
    elif len(places) == 1:
        left, rest = (), places.start
        for count, stride in reversed(axis):
            offset += rest % count * stride
            rest //= count
    else:
        return None
    return replace(view, axes=(*view.axes[: taken.axis], left, *view.axes[taken.axis + 1 :]), offset=offset)
