"""Products of two computed values, which are read where they lie."""

from __future__ import annotations

from collections.abc import Sequence

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import LANES
from sift_onnx.backends.cpu.run.schedules.factors import Axis, axis_of
from sift_onnx.backends.cpu.run.schedules.placed_views import PlacedView
from sift_onnx.backends.cpu.run.schedules.values import Values
from sift_onnx.backends.cpu.run.schedules.view_factors import ImageView, common_loops, contiguous, merged, operand
from sift_onnx.backends.cpu.run.schedules.view_steps import in_order, in_planes, place_result, together
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import BatchedMatmul

__all__ = ["multiply"]

# Axes of a batch that the kernel walks; it has two more for each matrix.
_MOST_LOOPS = 6
# What it takes to bring a column into the lanes, in products of a row: adjacent ones are copied, those whose values are
# adjacent are turned sixteen at a time, others are collected one by one.
_COPIED, _TURNED, _COLLECTED = 1, 2, 16


def multiply(values: Values, index: int, step: Step, spec: BatchedMatmul) -> None:
    """Add the call of a product."""
    batch = values.dims[step.output][:-2]
    first, second = values.view(step, 0), values.view(step, 1)
    views = [
        first.repeated((*batch, *first.dims[-2:])),
        second.repeated((*batch, *second.dims[-2:])).transposed_last(),
    ]
    if _multiply(values, index, step, spec, views):
        return
    views = [in_planes(values, view) for view in views]
    if _multiply(values, index, step, spec, views):
        return
    views = [in_order(values, view) for view in views]
    if not _multiply(values, index, step, spec, views):
        raise RuntimeError(f"no kernel reads the operands of {step.output!r}, which are tensors of their own")


def _multiply(values: Values, index: int, step: Step, spec: BatchedMatmul, views: Sequence[PlacedView]) -> bool:
    """Add the call for x, [..., rows, depth], and y, [..., columns, depth]; whether they can be read where they lie."""
    own = together(views)
    # Images are of the batch, and axes of a matrix are at one distance.
    if not own or not all(_is_matrix(view, len(own[0].axes) > 2) for view in own):
        return False
    loops = common_loops([view.axes[:-2] for view in own])
    if loops is None:
        return False
    sizes, strides = merged(loops)
    if len(sizes) > _MOST_LOOPS:
        return False
    (rows, depth), (columns, _) = (view.dims[-2:] for view in views)
    is_turned = _is_turned(own, rows, columns)
    order = (1, 0) if is_turned else (0, 1)
    matrices = [operand(views[i], [*(strides[i] if strides else ()), *map(_stride, own[i].axes[-2:])]) for i in order]
    op = _kernels.BatchedMatmul(
        batch=sizes, rows=columns if is_turned else rows, columns=rows if is_turned else columns, depth=depth,
        left=matrices[0], right=matrices[1], scale=spec.scale, layout="images16" if own[0].images else "planes",
        isa=values.isa,
    )  # fmt: skip
    of_matrix = (
        (axis_of(rows, 1), axis_of(columns, rows)) if is_turned else (axis_of(rows, columns), axis_of(columns, 1))
    )
    batch = contiguous(loops, len(own[0].axes) - 2)
    axes = (*(_spread(axis, rows * columns) for axis in batch), *of_matrix)
    place_result(values, index, step, op, [views[i].stored for i in order], axes, own[0].images)
    return True


def _is_matrix(view: ImageView, has_batch: bool) -> bool:
    return (has_batch or not view.images) and all(len(axis) <= 1 for axis in view.axes[-2:])


def _is_turned(views: Sequence[ImageView], rows: int, columns: int) -> bool:
    """Whether rows of the result are adjacent, not columns: what takes less, or else as x has them in memory."""
    of_rows, of_depth = map(_stride, views[0].axes[-2:])
    costs = (_cost(rows, columns, views[0]), _cost(columns, rows, views[1])) if not views[0].images else (0, 0)
    return costs[0] < costs[1] or (costs[0] == costs[1] and 0 < of_rows < of_depth)


def _cost(lanes: int, broadcast: int, view: ImageView) -> int:
    """What a product takes that has ``lanes`` of an operand in the lanes, and ``broadcast`` of the other one."""
    of_lanes, of_depth = map(_stride, view.axes[-2:])
    brought = _COPIED if of_lanes in (0, 1) else _TURNED if of_depth == 1 else _COLLECTED
    return -(-lanes // LANES) * (broadcast + brought)


def _stride(axis: Axis) -> int:
    return axis[0][1] if axis else 0


def _spread(axis: Axis, factor: int) -> Axis:
    """The positions of an axis ``factor`` times as far apart."""
    return tuple((size, stride * factor) for size, stride in axis)
