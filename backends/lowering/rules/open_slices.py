"""Slices whose bounds are sizes, which a run knows: an image is cropped to what it was before it was padded."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sift_onnx.backends.lowering.cut_sizes import OPEN_END, counted_from_end
from sift_onnx.backends.lowering.dims import Dim, Dims
from sift_onnx.backends.lowering.resampling import OpenSlicing, Padding
from sift_onnx.backends.lowering.rules.moving import moved, view_of_result
from sift_onnx.backends.lowering.rules.step import NodeView, Step
from sift_onnx.backends.lowering.specs import OpenRange, OpenSliced, PixelCopy

__all__ = ["are_pixels", "open_slice"]


def open_slice(node: NodeView, axes: Sequence[int], steps: Sequence[int]) -> Step | None:
    """The step of a Slice of neighbouring positions, if a bound is a size; None for another one."""
    dims, starts, ends = node.dims(0), node.vector(1), node.vector(2)
    if starts is None or ends is None or any(step != 1 for step in steps) or not len(starts) == len(ends) <= len(axes):
        return None
    bounds = [
        (axis, counted_from_end(dims[axis], start), counted_from_end(dims[axis], end))
        for axis, start, end in zip(axes, starts, ends, strict=False)
    ]
    if all(isinstance(start, int) and isinstance(end, int) for _, start, end in bounds):
        return None
    made = node.graph.dims(node.output)
    ranges = [
        OpenRange(axis, start, None if _is_open(end) else end, _count(node, made, axis))
        for axis, start, end in bounds
        if start != 0 or not _is_open(end)
    ]
    if not are_pixels(node, dims, {taken.axis for taken in ranges}):
        return moved(node, OpenSliced(tuple(ranges)), node.output)
    taken = {own.axis: OpenSlicing(own.start, own.stop, own.count) for own in ranges}
    return node.step(PixelCopy(taken.get(2, Padding()), taken.get(3, Padding())), node.operand(0, "image"))


def _is_open(end: Dim) -> bool:
    return isinstance(end, int) and end >= OPEN_END


def _count(node: NodeView, made: Dims | None, axis: int) -> Dim:
    return f"{node.output}[{axis}]" if made is None else made[axis]


def are_pixels(node: NodeView, dims: Dims, axes: Collection[int]) -> bool:
    """Whether it is height and width of images that are cut."""
    if len(dims) != 4 or not {2, 3}.issuperset(axes):
        return False
    result = view_of_result(node, node.output, dims, node.input(0), axis=2)
    return result == "image" and node.views.get(node.input(0)) in ("image", None)
