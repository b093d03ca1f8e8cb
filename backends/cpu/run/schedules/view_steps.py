"""Steps on values where they lie: products of two of them, arithmetic, and joining, in whatever order axes have.

Nothing is copied where images are in the lanes or tensors are in planes. Rows that lie in lanes are brought into planes
first. The result has the order of axes that its first operand has in memory, so that what turns values and turns them
back takes no time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from msgspec.structs import replace

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import Layout
from sift_onnx.backends.cpu.run.schedules.factors import Axis, axis_of, joined
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape, kernel_shape
from sift_onnx.backends.cpu.run.schedules.placed_views import PlacedView, Stored
from sift_onnx.backends.cpu.run.schedules.values import Values
from sift_onnx.backends.cpu.run.schedules.view_factors import (
    ImageView,
    Loop,
    common_loops,
    contiguous,
    image_view,
    merged,
    operand,
)
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.names import stored_key
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import (
    NO_ACTIVATION,
    Activation,
    BinaryFunction,
    ChannelScale,
    Elementwise,
    Joined,
    UnaryFunction,
)

__all__ = ["combine_in_place", "in_order", "in_planes", "join_in_place", "place_result", "together"]

# Axes that kernels for views walk.
_MOST_LOOPS = 8


@dataclass(frozen=True)
class _Arithmetic:
    """What a kernel for views does with values: activation(x op y), or activation(scale x + shift)."""

    kind: str
    activation: Activation = NO_ACTIVATION
    scale: float = 1.0
    shift: float = 0.0
    fill: float = 0.0


def combine_in_place(values: Values, index: int, step: Step) -> bool:
    """Add the call of a step of arithmetic that reads its operands where they lie; whether it has one.

    Whole tensors in the layout of their rows or images have faster kernels, but for functions of one or two operands.
    """
    found = _arithmetic(step)
    if found is None:
        return False
    dims = values.dims[step.output]
    views = [values.view(step, position).repeated(dims) for position in range(len(step.inputs))]
    is_here_alone = found.kind in (*get_args(BinaryFunction), *get_args(UnaryFunction))
    if not is_here_alone and all(view.is_whole for view in views) and not _leaves_planes(values, step, views):
        return False
    if _combine(values, index, step, found, views):
        return True
    if not is_here_alone:
        return False
    views = [in_planes(values, view) for view in views]
    if _combine(values, index, step, found, views):
        return True
    views = [in_order(values, view) for view in views]
    if not _combine(values, index, step, found, views):
        raise RuntimeError(f"no kernel reads the operands of {step.output!r}, which are tensors of their own")
    return True


def _leaves_planes(values: Values, step: Step, views: Sequence[PlacedView]) -> bool:
    """Whether kernels for lanes would need copies of what another kernel for views made in planes."""
    usual = values.layout_of(kernel_shape(views[0].dims, step.view))
    stored = [view.stored for view in views]
    return usual != "planes" and any(own.layout == "planes" and own.key not in values.calls.places for own in stored)


def _arithmetic(step: Step) -> _Arithmetic | None:
    spec = step.spec
    if isinstance(spec, Elementwise):
        return _Arithmetic(spec.kind, spec.activation, fill=spec.fill)
    if isinstance(spec, ChannelScale) and spec.slopes is None:
        scales, shifts = np.unique(spec.scale), np.unique(spec.shift)
        if len(scales) == len(shifts) == 1:
            return _Arithmetic("first", spec.activation, float(scales[0]), float(shifts[0]))
    return None


def _combine(values: Values, index: int, step: Step, found: _Arithmetic, views: Sequence[PlacedView]) -> bool:
    own = together(views)
    loops = common_loops([view.axes for view in own]) if own else None
    if not own or loops is None:
        return False
    # In the order of memory of the first operand; of an axis along which that is repeated, of the other one's.
    distances = [loop.strides[0] or loop.strides[-1] for loop in loops]
    order = sorted(range(len(loops)), key=lambda place: -distances[place])
    sizes, strides = merged([loops[place] for place in order])
    if len(sizes) > _MOST_LOOPS:
        return False
    specs = [operand(view, own) for view, own in zip(views, strides or [[]] * len(views), strict=True)]
    op = _kernels.ViewArithmetic(
        found.kind, sizes=sizes, left=specs[0], right=specs[1] if len(specs) > 1 else None, scale=found.scale,
        shift=found.shift, fill=found.fill, activation=found.activation, layout=_layout(own[0].images), isa=values.isa,
    )  # fmt: skip
    axes = contiguous(loops, len(views[0].axes), order)
    place_result(values, index, step, op, [view.stored for view in views], axes, own[0].images)
    return True


def join_in_place(values: Values, index: int, step: Step, spec: Joined) -> bool:
    """Add the calls of a concatenation whose result has the order of axes of its first operand; whether it has them.

    For operands in the order of the model there are better ways, see ``schedule``.
    """
    dims = values.dims[step.output]
    main = image_view(values.view(step, 0))
    if main is None or len(dims) > 4 or 0 in (*dims, *main.view.dims) or not _is_simple(main.axes):
        return False
    strides = [axis[0][1] if axis else 0 for axis in main.axes]
    order = sorted(range(len(dims)), key=lambda axis: -strides[axis])
    moved = [axis for axis in order if strides[axis]]
    if moved == sorted(moved):
        return False
    own_dims = (dims[0] // main.images, *dims[1:]) if main.images else dims
    result = [0] * len(dims)
    total = 1
    for axis in reversed(order):
        result[axis] = total
        total *= own_dims[axis]
    parts = []
    for position, start in enumerate(spec.starts):
        own = tuple(spec.count(position) if axis == spec.axis else size for axis, size in enumerate(dims))
        view = values.view(step, position)
        part = image_view(_as_images(values, view, main.images, step).repeated(own))
        if part is None or part.images != main.images or not _is_simple(part.axes):
            return False
        parts.append((part, start))
    layout = _layout(main.images)
    shape: Shape = (max(main.images, 1), total, 1, 1)
    key = stored_key(step.output, layout)
    for part, start in parts:
        loops = [Loop(axis, size, (stride, result[axis])) for axis in order for size, stride in part.axes[axis]]
        sizes, (read, written) = merged(loops) if loops else ([], ([], []))
        out = (shape, start * result[spec.axis], written)
        op = _kernels.ViewArithmetic(
            "first", sizes=sizes, left=operand(part.view, read), out=out, layout=layout, isa=values.isa
        )
        stored = part.view.stored
        values.calls.call(op, stored.shape, (stored.key,), key, step.dtype, index)
    axes = tuple(axis_of(own_dims[axis], result[axis]) for axis in range(len(dims)))
    values.views[step.output] = PlacedView(Stored(key, shape, layout), _with_images(axes, main.images, total))
    return True


def _as_images(values: Values, view: PlacedView, images: int, step: Step) -> PlacedView:
    """A constant as an operand of what lies in the lanes: the same in each image."""
    if not images or view.stored.layout != "planes" or view.dims[0] != 1:
        return view
    repeated = view.repeated((images, *view.dims[1:]))
    as_image = replace(repeated, axes=(*repeated.axes, *((),) * (4 - len(repeated.axes))))
    return PlacedView.of(values.copies.tensor(as_image, "image", "images16", step.dtype), repeated.dims)


def _is_simple(axes: Sequence[Axis]) -> bool:
    return all(len(axis) <= 1 for axis in axes)


def together(views: Sequence[PlacedView]) -> list[ImageView] | None:
    """Views that a kernel can read together: all in planes, or with the same images in the lanes."""
    found = [own for own in map(image_view, views) if own is not None]
    return found if len(found) == len(views) and len({own.images for own in found}) == 1 else None


def in_planes(values: Values, view: PlacedView) -> PlacedView:
    """The same view of the tensor in planes."""
    stored = view.stored
    if stored.layout == "planes":
        return view
    whole = PlacedView.of(stored, stored.shape)
    return replace(view, stored=values.copies.tensor(whole, "image", "planes", DType.FLOAT32))


def in_order(values: Values, view: PlacedView) -> PlacedView:
    """The values of a view as a tensor of their own in planes."""
    return PlacedView.of(values.copies.tensor(view, "rows", "planes", DType.FLOAT32), view.dims)


def place_result(
    values: Values,
    index: int,
    step: Step,
    op: _kernels.Op,
    operands: Sequence[Stored],
    axes: Sequence[Axis],
    images: int,
) -> None:
    """Call ``op``, whose result has ``axes`` in each of ``images``; in planes, where that is 0."""
    layout = _layout(images)
    total = math.prod(size for axis in axes for size, _ in axis)
    placed = _with_images(axes, images, total)
    shape: Shape = (max(images, 1), total, 1, 1)
    in_order = PlacedView(Stored("", shape, layout), placed).is_whole
    key = values.result_key(step.output, layout) if in_order else stored_key(step.output, layout)
    made = values.compute(index, step, op, operands, (key, layout))
    values.views[step.output] = PlacedView(made, placed)


def _with_images(axes: Sequence[Axis], images: int, total: int) -> tuple[Axis, ...]:
    """``axes`` of an image of ``total`` values, and of all images along the first of them."""
    return (joined((*axis_of(images, total), *axes[0])), *axes[1:]) if images else tuple(axes)


def _layout(images: int) -> Layout:
    return "images16" if images else "planes"
