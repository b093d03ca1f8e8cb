"""A region for a number of images or rows: the sequence of operators, and where each tensor lies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import Layout
from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.run.operators import build, build_for_size
from sift_onnx.backends.cpu.run.schedules.axis_steps import (
    deliver_integers,
    find_places,
    normalize_along,
    put_elements,
    read_integers,
    reduce_extreme,
    take_elements,
)
from sift_onnx.backends.cpu.run.schedules.bands import in_bands
from sift_onnx.backends.cpu.run.schedules.batches import is_of_channels
from sift_onnx.backends.cpu.run.schedules.byte_steps import compute_bytes, deliver_bytes, move_bytes
from sift_onnx.backends.cpu.run.schedules.calls import Schedule, bytes_of
from sift_onnx.backends.cpu.run.schedules.frame_steps import convolve_frames, fill_range, joined_frames
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape, Sizes, kernel_shape
from sift_onnx.backends.cpu.run.schedules.placed_views import PlacedView, Stored
from sift_onnx.backends.cpu.run.schedules.placement import Part
from sift_onnx.backends.cpu.run.schedules.product_steps import multiply
from sift_onnx.backends.cpu.run.schedules.recurrent_steps import walk_steps
from sift_onnx.backends.cpu.run.schedules.resolved import resolved_region
from sift_onnx.backends.cpu.run.schedules.sampling_steps import sample
from sift_onnx.backends.cpu.run.schedules.tensor_copies import contiguous_images
from sift_onnx.backends.cpu.run.schedules.token_steps import attend, attend_to_cache, pool_rows, rotate
from sift_onnx.backends.cpu.run.schedules.values import OpOf, Values
from sift_onnx.backends.cpu.run.schedules.view_moves import moved
from sift_onnx.backends.cpu.run.schedules.view_steps import combine_in_place, join_in_place
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import (
    ArgExtreme,
    Attention,
    BatchedMatmul,
    Channels,
    Conv,
    Elementwise,
    GatherElements,
    GlobalPool,
    GridSample,
    Joined,
    LinearLayer,
    LinearResize,
    Matmul,
    Moving,
    PixelCopy,
    Recurrent,
    ReduceExtreme,
    ScatterElements,
    Softmax,
    TopK,
)
from sift_onnx.backends.lowering.specs.decoding import CachedAttention, Rotated

__all__ = ["Schedule", "planned", "scheduled"]

_COPY = Elementwise("first")


def planned(
    region: Region,
    dims: Mapping[str, Sizes],
    layout_of: Callable[[Shape], Layout],
    op_of: OpOf,
    threads: int,
    isa: str,
) -> Values:
    """The values of ``region``, and a call for each operator and copy that makes them.

    The caller's arrays are the region's inputs, in order, then its outputs; all in planes.

    Args:
        region: to be run.
        dims: sizes of each value, by name; of the region's inputs, under :func:`input_key`.
        layout_of: the layout, between inputs and outputs, of tensors of a given shape.
        op_of: the operator of a step in a layout, but of attention; the schedules of a region share them.
        threads: that run it.
        isa: instruction set.
    """
    region = resolved_region(region, dims)
    values = Values(region, dims, layout_of, op_of, threads, isa)
    for index, step in enumerate(region.steps):
        _run_step(values, index, step)
        if step.output in values.direct:
            _deliver(values, step)
    return values


def scheduled(values: Values) -> Schedule:
    """The schedule of calls that have been planned: in bands, without copies that are not needed, each in its place."""
    calls = values.calls
    run = in_bands(calls.calls, values.region.chains, calls.places, values.threads)
    return replace(calls, calls=run).scheduled(values.array_sizes)


def _run_step(values: Values, index: int, step: Step) -> None:
    """Add the calls of a step, with copies of what it needs in another place."""
    spec = step.spec
    if step.dtype is DType.INT64:
        read_integers(values, index, step)
    elif step.dtype.is_bytes and isinstance(spec, (Moving, PixelCopy)):
        move_bytes(values, index, step, spec, lambda index, step: _run_step(values, index, step))
    elif step.dtype.is_bytes or step.result_dtype.is_bytes:
        compute_bytes(values, index, step)
    elif isinstance(spec, LinearLayer):
        _compute(values, index, step)
    elif isinstance(spec, Joined):
        if not join_in_place(values, index, step, spec):
            _join(values, index, step, spec)
    elif isinstance(spec, Moving):
        _move(values, step, spec)
    elif isinstance(spec, GlobalPool) and step.view == "rows":
        pool_rows(values, index, step, spec)
    elif isinstance(spec, Attention):
        attend(values, index, step, spec)
    elif isinstance(spec, CachedAttention):
        attend_to_cache(values, index, step, spec)
    elif isinstance(spec, Rotated):
        rotate(values, index, step, spec)
    elif isinstance(spec, BatchedMatmul):
        multiply(values, index, step, spec)
    elif isinstance(spec, Recurrent):
        walk_steps(values, index, step)
    elif isinstance(spec, (ArgExtreme, TopK)):
        find_places(values, index, step, spec)
    elif isinstance(spec, GatherElements):
        take_elements(values, index, step, spec)
    elif isinstance(spec, ScatterElements):
        put_elements(values, index, step, spec)
    elif isinstance(spec, GridSample):
        sample(values, index, step, spec)
    elif isinstance(spec, ReduceExtreme):
        reduce_extreme(values, index, step, spec)
    elif isinstance(spec, Softmax) and not is_of_channels(step, spec.axis):
        normalize_along(values, index, step, spec.axis)
    elif not combine_in_place(values, index, step):
        _compute(values, index, step)


def _compute(values: Values, index: int, step: Step) -> None:
    spec, dims = step.spec, values.dims[step.output]
    views = [values.view(step, position) for position in range(len(step.inputs))]
    if isinstance(spec, (PixelCopy, LinearResize)):
        # What a resize follows is read for its size alone.
        views = views[:1]
    if isinstance(spec, Elementwise) and spec.broadcasts:
        views[0] = views[0].repeated(dims)
    repeats = isinstance(spec, (Elementwise, Conv, Matmul))
    layout = values.layout_of(kernel_shape(views[0].dims, step.view))
    if convolve_frames(values, index, step, layout):
        return
    if isinstance(spec, Softmax) and views[0].is_whole and views[0].stored.layout == "planes":
        layout = "planes"  # rows as they are: bringing them into lanes takes longer than it saves
    operands = []
    for position, view in enumerate(views):
        of_result = position > 0 and repeats
        own = view.repeated(dims) if of_result else view
        operands.append(values.operand(step, position, own, step.result_view if of_result else step.view, layout))
    op = _op(values, index, step, layout, views[0].dims)
    made = values.compute(index, step, op, operands, (values.result_key(step.output, layout), layout))
    values.check_result(step, made)
    values.views[step.output] = PlacedView.of(made, dims)


def _op(values: Values, index: int, step: Step, layout: Layout, operand: Sizes) -> _kernels.Op:
    match step.spec:
        case PixelCopy() | LinearResize():
            return build_for_size(step.spec, operand[2:], values.dims[step.output][2:], layout)
        case Channels(taken=taken):
            return _kernels.ChannelCopy(taken, 0, len(taken), layout=layout)
    return values.op_of(index, layout)


def _move(values: Values, step: Step, spec: Moving) -> None:
    before, dims = values.view(step, 0), values.dims[step.output]
    after = moved(before, spec, dims)
    if after is None:
        # Other axes than those of memory: copied in the order that the step begins with.
        layout = values.layout_of(kernel_shape(before.dims, "rows"))
        copied = values.operand(step, 0, before, "rows", layout)
        after = moved(PlacedView.of(copied, before.dims), spec, dims)
        assert after is not None
    values.views[step.output] = after


def _join(values: Values, index: int, step: Step, spec: Joined) -> None:
    overlapping = joined_frames(values, step, spec)
    if overlapping is not None:
        values.views[step.output] = overlapping
        return
    dims = values.dims[step.output]
    shape = kernel_shape(dims, step.result_view)
    layout = values.layout_of(shape)
    if step.output in values.direct and all(
        values.view(step, position).stored.layout == "planes" for position in range(len(step.inputs))
    ):
        # Into the caller's array, without a way through lanes.
        layout = "planes"
    key = values.result_key(step.output, layout)
    result = Stored(key, shape, layout)
    channel_axis = 1 if step.result_view == "image" else len(dims) - 1
    for position, start in enumerate(spec.starts):
        view = values.view(step, position)
        missing = len(dims) - len(view.axes)
        size = view.dims[spec.axis - missing] if spec.axis >= missing else 1
        if size == 0:
            continue
        view = view.repeated((*dims[: spec.axis], size, *dims[spec.axis + 1 :]))
        is_contiguous = shape[0] <= contiguous_images(layout)
        stored = view.stored
        is_whole = view.is_whole and stored.layout == layout and (layout == "planes" or stored.shape[0] == shape[0])
        # Along the first axis that has more than one position.
        is_range = layout == "planes" and math.prod(dims[: spec.axis]) == 1
        inner = math.prod(dims[spec.axis + 1 :])
        if is_range and fill_range(values, index, step, view, result, start * inner):
            continue
        if spec.axis == channel_axis and (is_contiguous or is_whole):
            own = values.operand(step, position, view, step.result_view, layout)
            op = _kernels.ChannelCopy(range(size), start, spec.size, layout=layout)
            # The operand can lie where the result has it.
            offset = start * bytes_of((shape[0], 1, *shape[2:]), layout, step.dtype)
            part = Part(key, offset) if is_contiguous else None
            values.calls.call(op, own.shape, (own.key,), key, step.dtype, index, part=part)
        elif is_range:
            own = values.operand(step, position, view, step.result_view, layout)
            op = _kernels.ChannelCopy(range(size), start, spec.size, layout=layout)
            part = Part(key, step.dtype.itemsize * start * inner)
            values.calls.call(op, (1, size, inner, 1), (own.key,), key, step.dtype, index, part=part)
        else:
            values.copies.copy(view, step.result_view, result, step.dtype, index, (spec.axis, start, dims))
    values.views[step.output] = PlacedView.of(result, dims)


def _deliver(values: Values, step: Step) -> None:
    """Bring a result into the caller's array."""
    if step.result_dtype is DType.INT64:
        deliver_integers(values, step)
        return
    if step.result_dtype.is_bytes:
        deliver_bytes(values, step)
        return
    out, view, copies = values.direct[step.output], values.views[step.output], values.copies
    if view.stored.key == out and view.is_whole:
        return
    shape = kernel_shape(view.dims, step.result_view)
    layout = values.layout_of(shape)
    mover = values.mover(step.output)
    if not view.is_whole and layout == "images16" and not copies.has_long_runs(view):
        view = PlacedView.of(copies.tensor(view, step.result_view, layout, step.dtype, mover), view.dims)
    if not view.is_whole:
        copies.copy(view, step.result_view, Stored(out, shape, "planes"), step.dtype, mover)
        return
    stored = view.stored
    leaves_lanes = stored.layout == "images16"
    copy = _kernels.Reorder("images16", isa=values.isa) if leaves_lanes else build(_COPY, "planes", None, values.isa)
    values.calls.call(copy, stored.shape, (stored.key,), out, step.dtype)
