"""MaxPool, AveragePool, pooling of whole images, and reductions: ReduceMean, ReduceSum, ReduceL2 and so on."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sift_onnx.backends.lowering.dims import Dims, concrete, product
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step
from sift_onnx.backends.lowering.rules.window import window_of
from sift_onnx.backends.lowering.specs import (
    ChannelScale,
    Elementwise,
    Geometry,
    GlobalPool,
    Pool,
    ReduceExtreme,
    Reshaped,
    result_dims,
)

__all__ = [
    "global_average_pool",
    "global_max_pool",
    "pool",
    "reduce_extreme",
    "reduce_mean",
    "reduce_square_sum",
    "reduce_sum",
]

# Pixels of the largest window that the kernels take.
_MOST_PIXELS = 4096


def pool(node: NodeView) -> Step:
    """MaxPool and AveragePool over two axes."""
    node.operand(0, "image")
    shape = list(node.attribute("kernel_shape") or [])
    if len(shape) != 2:
        raise NotLowered(f"a window over {len(shape)} axes; the kernels are two-dimensional")
    geometry = window_of(node, (shape[0], shape[1]))
    spec = Pool(
        "max" if node.op == "MaxPool" else "average",
        geometry,
        bool(node.attribute("ceil_mode", 0)),
        bool(node.attribute("count_include_pad", 0)),
    )
    return node.step(spec, "image")


def global_average_pool(node: NodeView) -> Step:
    """GlobalAveragePool over all axes behind the channels."""
    rank = len(node.dims(0))
    if rank != 4:
        return node.step(GlobalPool(axes=tuple(range(2, rank))), node.operand(0, "rows"))
    node.operand(0, "image")
    return node.step(GlobalPool(), "image")


def global_max_pool(node: NodeView) -> Step:
    """GlobalMaxPool over two axes: a window of the whole image, if its size is known."""
    node.operand(0, "image")
    if not _has_window(node.dims(0)):
        return node.step(ReduceExtreme("max", (2, 4)), "image")
    height, width = concrete(node.dims(0)[2:])
    return node.step(Pool("max", Geometry((height, width))), "image")


def _has_window(dims: Dims) -> bool:
    """Whether a window can be the whole image."""
    return all(isinstance(size, int) for size in dims[2:]) and 0 < math.prod(concrete(dims[2:])) <= _MOST_PIXELS


def reduce_extreme(node: NodeView) -> tuple[Step, ...]:
    """ReduceMax and ReduceMin over neighbouring axes.

    A maximum over height and width is a window of the whole image, whose one position may be dropped.
    """
    dims = node.dims(0)
    axes = sorted({axis % len(dims) for axis in node.axes()})
    keep_axes = bool(node.attribute("keepdims", 1))
    if not axes or axes != list(range(axes[0], axes[-1] + 1)):
        raise NotLowered(f"an extreme over the axes {axes}; the kernels have that over neighbouring ones")
    if any(dims[axis] == 0 for axis in axes) or (len(axes) == len(dims) and not keep_axes):
        raise NotLowered("it is of no values, or makes a number")
    if node.op == "ReduceMax" and axes == [2, 3] and len(dims) == 4 and _has_window(dims):
        return _largest_pixels(node, keep_axes)
    view = node.operand(0)
    spec = ReduceExtreme("max" if node.op == "ReduceMax" else "min", (axes[0], axes[-1] + 1), keep_axes)
    return (node.step(spec, view, view if keep_axes else "rows"),)


def _largest_pixels(node: NodeView, keep_axes: bool) -> tuple[Step, ...]:
    step = global_max_pool(node)
    if keep_axes:
        return (step,)
    kept = f"{step.output}/kept"
    dropped = replace(step, spec=Reshaped(((0, 1), (1, 2))), inputs=(kept,), result_view="rows")
    return replace(step, output=kept), dropped


def reduce_mean(node: NodeView) -> Step:
    """ReduceMean over height and width, or over tokens."""
    return _mean(node, "a mean")[0]


def reduce_sum(node: NodeView) -> tuple[Step, ...]:
    """ReduceSum, as a mean times the number of values."""
    step, axes = _mean(node, "a sum")
    dims = node.dims(0)
    count = product(dims[axis] for axis in axes)
    kept = result_dims(step.spec, dims)
    channels = kept[1 if step.result_view == "image" else -1] if kept else None
    if not isinstance(count, int) or not isinstance(channels, int):
        raise NotLowered("the number of values that it adds is unknown")
    mean = replace(step, output=f"{step.output}/mean")
    scale = ChannelScale(np.full(channels, count, np.float32), np.zeros(channels, np.float32))
    return mean, replace(step, spec=scale, inputs=(mean.output,), view=step.result_view)


def reduce_square_sum(node: NodeView) -> tuple[Step, ...]:
    """ReduceSumSquare, and ReduceL2, which is its root."""
    mean, scaled = reduce_sum(node)
    view = mean.view
    squares = replace(
        node.step(Elementwise("multiply"), view), inputs=(node.input(0),) * 2, output=node.between("squares")
    )
    mean = replace(mean, inputs=(squares.output,))
    if node.op == "ReduceSumSquare":
        return squares, mean, scaled
    scaled = replace(scaled, output=node.between("sum"))
    root = node.step(Elementwise("square_root"), scaled.result_view)
    return squares, mean, scaled, replace(root, inputs=(scaled.output,))


def _mean(node: NodeView, what: str) -> tuple[Step, tuple[int, ...]]:
    """The step of a mean, and the axes that it is over; ``what`` it is for the user."""
    dims = node.dims(0)
    axes = tuple(sorted(axis % len(dims) for axis in node.axes()))
    if not axes or 0 in axes or axes != tuple(range(axes[0], axes[-1] + 1)):
        raise NotLowered(f"{what} over the axes {list(axes)}; the kernels have that over height and width, or tokens")
    keep_axes = bool(node.attribute("keepdims", 1))
    if axes == (2, 3) and node.operand(0) == "image":
        return node.step(GlobalPool(keep_axes), "image", "image" if keep_axes else "rows"), axes
    return node.step(GlobalPool(keep_axes, axes), node.operand(0, "rows")), axes
