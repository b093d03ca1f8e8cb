"""MaxPool, AveragePool, pooling of whole images, and reductions: ReduceMean, ReduceSum, ReduceL2 and so on."""

from __future__ import annotations

import math
from dataclasses import replace

from sift_onnx.backends.lowering.dims import Dims, concrete
from sift_onnx.backends.lowering.names import made_name
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step
from sift_onnx.backends.lowering.rules.window import window_of
from sift_onnx.backends.lowering.specs import (
    Elementwise,
    Geometry,
    GlobalPool,
    Pool,
    ReduceExtreme,
    Reshaped,
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
    kept = made_name(step.output, "kept")
    dropped = replace(step, spec=Reshaped(((0, 1), (1, 2))), inputs=(kept,), result_view="rows")
    return replace(step, output=kept), dropped


def reduce_mean(node: NodeView) -> Step:
    """ReduceMean over height and width, or over tokens."""
    return _pooled(node, "a mean", sums=False)


def reduce_sum(node: NodeView) -> Step:
    """ReduceSum, likewise."""
    return _pooled(node, "a sum", sums=True)


def reduce_square_sum(node: NodeView) -> tuple[Step, ...]:
    """ReduceSumSquare, and ReduceL2, which is its root."""
    step = reduce_sum(node)
    squares = replace(
        node.step(Elementwise("multiply"), step.view), inputs=(node.input(0),) * 2, output=node.between("squares")
    )
    summed = replace(step, inputs=(squares.output,))
    if node.op == "ReduceSumSquare":
        return squares, summed
    summed = replace(summed, output=node.between("sum"))
    root = node.step(Elementwise("square_root"), summed.result_view)
    return squares, summed, replace(root, inputs=(summed.output,))


def _pooled(node: NodeView, what: str, sums: bool) -> Step:
    """The step of a mean or a sum; ``what`` it is for the user."""
    dims = node.dims(0)
    axes = tuple(sorted(axis % len(dims) for axis in node.axes()))
    if not axes or 0 in axes or axes != tuple(range(axes[0], axes[-1] + 1)):
        raise NotLowered(f"{what} over the axes {list(axes)}; the kernels have that over height and width, or tokens")
    keep_axes = bool(node.attribute("keepdims", 1))
    if axes == (2, 3) and node.operand(0) == "image":
        return node.step(GlobalPool(keep_axes, sums=sums), "image", "image" if keep_axes else "rows")
    return node.step(GlobalPool(keep_axes, axes, sums), node.operand(0, "rows"))
