"""Sizes of the results of nodes that take windows, pad, or cut axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from sift_onnx.backends.lowering.cut_sizes import OPEN_END, counted_from_end, sliced
from sift_onnx.backends.lowering.dims import (
    Dim,
    Dims,
    added,
    are_counts,
    cut,
    is_at_least,
    is_count,
    product,
    subtracted,
    terms,
    window,
)
from sift_onnx.backends.lowering.sizes.known import KnownSizes

__all__ = ["dims_of_padded", "dims_of_slice", "dims_of_windows", "second_operand"]


def second_operand(node: onnx.NodeProto) -> int:
    """Where a product or a convolution has its second operand: behind scale and zero point of quantized ones."""
    return 3 if node.op_type in ("QLinearConv", "QLinearMatMul") else 1


def dims_of_windows(
    known: KnownSizes, node: onnx.NodeProto, attributes: Mapping[str, Any], first: Dims
) -> Sequence[Dim | None]:
    """Of a convolution, or a pooling: images, channels, and the positions of the window along each axis."""
    images, channels, *sizes = first
    made: Dim | None = channels
    kernel = attributes.get("kernel_shape")
    if node.op_type in ("Conv", "ConvInteger", "ConvTranspose", "QLinearConv"):
        weights = known.dims(node.input[second_operand(node)])
        made = None if weights is None else weights[0]
        if weights is not None and node.op_type == "ConvTranspose":
            made = product((weights[1], int(attributes.get("group", 1))))
        kernel = kernel or (weights[2:] if weights is not None else None)
    auto = attributes.get("auto_pad", b"NOTSET")
    if kernel is None or len(kernel) != len(sizes) or auto not in (b"NOTSET", "NOTSET"):
        return [images, made, *[None] * len(sizes)]
    count = len(sizes)
    strides, dilations = (attributes.get(name) or [1] * count for name in ("strides", "dilations"))
    pads = attributes.get("pads") or [0] * 2 * count
    if node.op_type == "ConvTranspose":
        more = attributes.get("output_padding") or [0] * count
        reach = [dilations[i] * (kernel[i] - 1) + 1 + more[i] - pads[i] - pads[i + count] for i in range(count)]
        computed = [added((product((strides[i], size)), reach[i] - strides[i])) for i, size in enumerate(sizes)]
        return [images, made, *(attributes.get("output_shape") or computed)]
    ceil_mode = bool(attributes.get("ceil_mode", 0))
    positions = [
        window(size, kernel[i], strides[i], dilations[i], (pads[i], pads[i + count]), ceil_mode)
        for i, size in enumerate(sizes)
    ]
    return [images, made, *positions]


def dims_of_padded(known: KnownSizes, node: onnx.NodeProto, first: Dims) -> Sequence[Dim | None] | None:
    """Of a Pad with known pads."""
    pads = known.vector(node.input[1]) if len(node.input) > 1 else None
    axes = known.integers(node.input[3]) if len(node.input) > 3 and node.input[3] else range(len(first))
    if pads is None or axes is None or len(pads) != 2 * len(axes):
        return None
    result: list[Dim | None] = list(first)
    for i, axis in enumerate(axes):
        result[axis] = added((first[axis], pads[i], pads[i + len(axes)]))
    return result


def dims_of_slice(known: KnownSizes, node: onnx.NodeProto, first: Dims) -> Sequence[Dim | None] | None:
    """Of a Slice by known integers, or by sizes."""
    starts, ends = known.vector(node.input[1]), known.vector(node.input[2])
    axes, steps = (known.integers(node.input[i]) if i < len(node.input) and node.input[i] else () for i in (3, 4))
    if starts is None or ends is None or axes is None or steps is None:
        return None
    result: list[Dim | None] = list(first)
    for i, axis in enumerate(axes or range(len(starts))):
        size = first[axis]
        start, end = (counted_from_end(size, bound) for bound in (starts[i], ends[i]))
        step = steps[i] if steps else 1
        if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
            result[axis] = len(range(size)[start:end:step])
        elif isinstance(start, int) and isinstance(end, int) and step > 0:
            is_one = end == start + 1 or (start == -1 and end >= OPEN_END)
            result[axis] = 1 if is_one else sliced(size, start, end, step)
        elif step != 1 or not _is_first(start, size) or not are_counts(terms(end)):
            result[axis] = None
        elif not isinstance(end, int):
            result[axis] = cut(size, end)
        elif end < OPEN_END:
            result[axis] = None
        if result[axis] is None and step == 1:
            result[axis] = _between(size, start, end)
    return result


def _between(size: Dim, start: Dim, end: Dim) -> Dim | None:
    """Positions from ``start`` to ``end``, if both are known to lie within an axis of ``size``, one after the other."""
    first, last = (_from_front(size, bound) for bound in (start, end))
    if first is None or last is None:
        return None
    first, last = cut(size, first), cut(size, last)
    return subtracted(last, first) if is_at_least(last, first) else None


def _from_front(size: Dim, bound: Dim) -> Dim | None:
    """A bound of a slice, counted from the front of the axis; None if it is not known which end it is counted from."""
    if isinstance(bound, int) and bound >= OPEN_END:
        return size
    if is_count(bound):
        return bound
    behind = product((-1, bound))
    if is_count(behind) and is_at_least(size, behind) and behind != 0 and is_at_least(behind, 1):
        return subtracted(size, behind)
    return None


def _is_first(start: Dim, size: Dim) -> bool:
    """Whether a slice from ``start`` on leaves out nothing: as many positions from the end as there are, or more."""
    # An axis that was cut to a length is no longer than that.
    most = size[2] if isinstance(size, tuple) and size[0] == "cut" else size
    return start == 0 or (not isinstance(size, int) and start in (product((-1, size)), product((-1, most))))
