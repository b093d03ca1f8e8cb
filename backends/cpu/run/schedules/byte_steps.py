"""Steps that read, make or move quantized values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from msgspec.structs import replace as replaced

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.float_quads import added_layout
from sift_onnx.backends.cpu.lower.layouts import Layout
from sift_onnx.backends.cpu.run.schedules.byte_calls import is_on_quads, position_copy, positions_read
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape, kernel_shape, operand_key
from sift_onnx.backends.cpu.run.schedules.placed_views import PlacedView, Stored
from sift_onnx.backends.cpu.run.schedules.values import Values
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.names import stored_key
from sift_onnx.backends.lowering.rules import Step, View
from sift_onnx.backends.lowering.specs import Joined, Moving, PixelCopy, QuantizedMatmul, Reshaped, Sliced

__all__ = ["compute_bytes", "deliver_bytes", "move_bytes"]

# Schedules a step on floats.
RunStep = Callable[[int, Step], None]


def compute_bytes(values: Values, index: int, step: Step) -> None:
    """A step that reads or makes quantized values, and computes."""
    dims = values.dims[step.output]
    shape = kernel_shape(dims, step.result_view)
    key = stored_key(step.output, "quads")
    layout: Layout = "quads"
    if not step.dtype.is_bytes and step.inputs[0] in values.bytes.float_quads:
        # What makes the floats has made the bytes.
        values.bytes.stored[step.output] = replaced(values.bytes.float_quads[step.inputs[0]], layout="quads")
        return
    if not step.dtype.is_bytes:
        view = values.view(step, 0)
        read = kernel_shape(view.dims, step.view)
        layout = "planes" if _has_pixels(read) else values.copies.cheapest_layout(view, read)
        operands = [values.operand(step, 0, view, step.view, layout)]
    else:
        is_added = isinstance(step.spec, QuantizedMatmul) and step.spec.is_added
        operands = [_quads(values, step, position) for position in range(1 if is_added else len(step.inputs))]
        if not step.result_dtype.is_bytes:
            in_planes = step.output in values.direct or _has_pixels(shape)
            layout = "planes" if in_planes else values.layout_of(shape)
            if step.output in values.region.float_quads:
                layout = "float_quads"
            key = values.result_key(step.output, layout)
        if is_added:
            operands.append(_added(values, step, layout))
    made = values.compute(index, step, values.op_of(index, layout), operands, (key, layout))
    values.check_result(step, made)
    if step.result_dtype.is_bytes:
        values.bytes.stored[step.output] = Stored(made.key, made.shape, "quads")
    elif layout == "float_quads":
        values.bytes.float_quads[step.output] = made
    else:
        values.views[step.output] = PlacedView.of(made, dims)


def _added(values: Values, step: Step, layout: Layout) -> Stored:
    """The floats that a layer whose result is in ``layout`` adds, see :func:`added_layout`."""
    found = values.bytes.float_quads.get(step.inputs[1])
    if found is not None:
        return found
    floats = replace(step, dtype=DType.FLOAT32)
    own = added_layout(is_beside_bytes=False, result=layout)
    return values.operand(floats, 1, values.view(step, 1), step.result_view, own)


def _has_pixels(shape: Shape) -> bool:
    """Whether floats beside bytes lie in planes, whose pixels are the positions of quads.

    Between quads and lanes of images, each value would go to another vector by itself.
    """
    return shape[2] * shape[3] > 1


def move_bytes(values: Values, index: int, step: Step, spec: Moving | PixelCopy, run_step: RunStep) -> None:
    """A step that moves quantized values.

    Args:
        values: of the region.
        index: of the step.
        step: that moves.
        spec: of the step.
        run_step: schedules a step on floats of the same numbers.
    """
    dims = values.dims[step.output]
    if isinstance(spec, Moving) and is_on_quads(spec, dims, step.result_view):
        _move_channels(values, index, step, spec)
        return
    operand = operand_key(step, 0, (*values.bytes.stored, *values.bytes.floats))
    positions = positions_read(step, values.dims[operand])
    if positions is None:
        _move_as_floats(values, index, step, run_step)
        return
    own, shape = _quads(values, step, 0), kernel_shape(dims, step.result_view)
    op, source = position_copy(positions, own.shape, shape, values.isa)
    key = stored_key(step.output, "quads")
    # Words, as large as floats.
    values.calls.call(op, source, (own.key,), key, DType.FLOAT32, index)
    values.bytes.stored[step.output] = Stored(key, shape, "quads")


def deliver_bytes(values: Values, step: Step) -> None:
    """Bring a result into the caller's array."""
    name = step.output
    shape = kernel_shape(values.dims[name], step.result_view)
    is_signed = name in values.region.signed
    values.bytes.deliver(name, shape, values.direct[name], is_signed, _as_floats(values, step.result_view))


def _quads(values: Values, step: Step, position: int) -> Stored:
    """An operand of bytes."""
    key = operand_key(step, position, (*values.bytes.stored, *values.bytes.floats))
    shape = kernel_shape(values.dims[key], step.view)
    return values.bytes.quads(key, shape, _as_floats(values, step.view))


def _as_floats(values: Values, read_as: View) -> Callable[[PlacedView], Stored]:
    return lambda view: values.copies.float_tensor(view, read_as)


def _move_channels(values: Values, index: int, step: Step, spec: Moving) -> None:
    """Ranges of channels are cut or joined, or only sizes change."""
    if isinstance(spec, Reshaped):
        values.bytes.stored[step.output] = _quads(values, step, 0)
        return
    key = stored_key(step.output, "quads")
    for position in range(len(step.inputs)):
        own = _quads(values, step, position)
        if isinstance(spec, Joined):
            ends = (0, own.shape[1], spec.starts[position], spec.size)
        else:
            assert isinstance(spec, Sliced)
            places = spec.ranges[0].places(own.shape[1])
            ends = (places.start, places.stop, 0, len(places))
        values.compute(index, step, _kernels.QuadChannels(*ends), [own], (key, "quads"))
    values.bytes.stored[step.output] = Stored(key, kernel_shape(values.dims[step.output], step.result_view), "quads")


def _move_as_floats(values: Values, index: int, step: Step, run_step: RunStep) -> None:
    """A step that moves bytes, on floats of the same numbers."""
    names = []
    for position in range(len(step.inputs)):
        found = operand_key(step, position, (*values.bytes.stored, *values.bytes.floats))
        name = stored_key(step.inputs[position], "numbers")
        if name not in values.views:
            sizes = values.dims[found]
            own = values.bytes.floats.get(found)
            if own is None:
                shape = kernel_shape(sizes, step.view)
                layout = values.layout_of(shape)
                plain = values.bytes.numbers(found, shape, layout, _as_floats(values, step.view))
                own = PlacedView.of(plain, sizes)
            values.views[name], values.dims[name] = own, sizes
        names.append(name)
    made = stored_key(step.output, "numbers")
    values.dims[made] = values.dims[step.output]
    run_step(index, replace(step, inputs=tuple(names), output=made, dtype=DType.FLOAT32, result_dtype=DType.FLOAT32))
    values.bytes.floats[step.output] = values.views[made]
