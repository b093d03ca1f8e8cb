"""Frames of volumes that lie in planes: those that a kernel is multiplied by overlap, and are read where they lie.

A convolution over several frames reads images whose channels are those of adjacent frames (``lowering/volumes``). As a
tensor, each frame would be there once for each frame of the kernel. In planes, an image is contiguous, and so are
adjacent frames of it: the convolution runs image by image, each read within the tensor of all frames.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import Layout
from sift_onnx.backends.cpu.run.schedules.calls import bytes_of
from sift_onnx.backends.cpu.run.schedules.factors import joined, offsets_of
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import kernel_shape
from sift_onnx.backends.cpu.run.schedules.placed_views import PlacedView, Stored
from sift_onnx.backends.cpu.run.schedules.placement import Part
from sift_onnx.backends.cpu.run.schedules.values import Values
from sift_onnx.backends.cpu.run.schedules.view_factors import operand
from sift_onnx.backends.lowering.names import stored_key
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import Conv, Joined

__all__ = ["convolve_frames", "fill_range", "joined_frames"]

# Floats of an image from which a call of its own takes less time than a copy. Several threads share the tiles of a
# call: they need an image of many pixels each.
_LEAST_FLOATS = 1 << 13
_LEAST_PIXELS = 1 << 11


def joined_frames(values: Values, step: Step, spec: Joined) -> PlacedView | None:
    """A concatenation as a view, where its operands are alike and lie at equal distances in planes."""
    views = [values.view(step, position) for position in sorted(range(len(spec.starts)), key=spec.starts.__getitem__)]
    first = views[0]
    if not step.is_extra or len(views) < 2 or first.stored.layout != "planes":
        return None
    distance = views[1].offset - first.offset
    for position, view in enumerate(views):
        expected = replace(first, offset=first.offset + position * distance)
        if view != expected or distance <= 0:
            return None
    axes = list(first.axes)
    axes[spec.axis] = joined(((len(views), distance), *axes[spec.axis]))
    return replace(first, axes=tuple(axes))


def convolve_frames(values: Values, index: int, step: Step, layout: Layout) -> bool:
    """Add the calls of a convolution of overlapping images, one for each; whether it has such."""
    view, dims = values.view(step, 0), values.dims[step.output]
    if not isinstance(step.spec, Conv) or layout != "planes" or view.stored.layout != "planes" or view.is_whole:
        return False
    image = math.prod(view.dims[1:])
    is_contiguous = joined([factor for axis in view.axes[1:] for factor in axis]) == ((image, 1),)
    if not is_contiguous or image < _LEAST_FLOATS or view.is_contiguous:
        return False
    shape = kernel_shape(dims, "image")
    if values.threads > 1 and math.prod(shape[2:]) < _LEAST_PIXELS * values.threads:
        return False
    key = values.result_key(step.output, layout)
    size = math.prod(shape[1:])
    views = [view, *(values.view(step, position).repeated(dims) for position in range(1, len(step.inputs)))]
    op = values.op_of(index, layout)
    for number in range(shape[0]):
        operands = [values.operand(step, i, _image_of(own, number), "image", layout) for i, own in enumerate(views)]
        made = values.compute(index, step, op, operands, (stored_key(key, f"image {number}"), layout))
        copy = _kernels.ChannelCopy([0], number, shape[0], layout=layout)
        part = Part(key, number * bytes_of((1, *shape[1:]), layout, step.dtype))
        values.calls.call(copy, (1, 1, size, 1), (made.key,), key, step.dtype, index, part=part)
    values.views[step.output] = PlacedView.of(Stored(key, shape, layout), dims)
    return True


def fill_range(values: Values, index: int, step: Step, view: PlacedView, result: Stored, start: int) -> bool:
    """Add the call that fills floats of a result, in planes, if they are one float repeated, as in padding."""
    count = math.prod(view.dims)
    if count < 2 or any(stride for axis in view.axes for _, stride in axis):
        return False
    op = _kernels.ViewArithmetic(
        "first", sizes=[count], left=operand(view, [0]), out=(result.shape, start, [1]), layout="planes", isa=values.isa
    )
    values.calls.call(op, view.stored.shape, (view.stored.key,), result.key, step.dtype, index)
    return True


def _image_of(view: PlacedView, number: int) -> PlacedView:
    offset = view.offset + int(offsets_of(view.axes[:1])[number])
    return replace(view, axes=((), *view.axes[1:]), offset=offset)
