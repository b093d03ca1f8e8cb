"""Steps along any axis: softmax, extremes, places of values, and values that are taken by their places.

Values are read in planes, where any axis can be that of channels, with the axes before it as images and those behind it
as pixels. Extremes are also found in lanes that hold images, since the axes of an image lie in order there as well.
Places are int64 in the model's order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import Layout
from sift_onnx.backends.cpu.run.schedules.batches import is_of_channels
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape, Sizes, operand_key
from sift_onnx.backends.cpu.run.schedules.placed_views import PlacedView, Stored
from sift_onnx.backends.cpu.run.schedules.values import Values
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.names import stored_key
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import (
    ArgExtreme,
    GatherElements,
    GatherRows,
    ReduceExtreme,
    Reshaped,
    ScatterElements,
    TopK,
)

__all__ = [
    "deliver_integers",
    "find_places",
    "normalize_along",
    "put_elements",
    "read_integers",
    "reduce_extreme",
    "take_elements",
]


def normalize_along(values: Values, index: int, step: Step, axis: int) -> None:
    """Softmax along an axis that is not that of channels."""
    view = values.view(step, 0)
    operand = replace(values.operand(step, 0, view, step.view, "planes"), shape=_along(view.dims, axis))
    _make_planes(values, index, step, values.op_of(index, "planes"), [operand])


def reduce_extreme(values: Values, index: int, step: Step, spec: ReduceExtreme) -> None:
    """ReduceMax and ReduceMin."""
    view, (first, end) = values.view(step, 0), spec.axes
    dims, stored = view.dims, view.stored
    in_lanes = first > 0 and stored.layout == "images16" and view.is_whole and stored.shape[0] == dims[0]
    layout: Layout = "images16" if in_lanes else "planes"
    operand = stored if in_lanes else values.operand(step, 0, view, step.view, "planes")
    images = dims[0] if first else 1
    shape = (images, math.prod(dims[1:first]), math.prod(dims[first:end]), math.prod(dims[end:]))
    result = (values.result_key(step.output, layout), layout)
    made = values.compute(index, step, values.op_of(index, layout), [replace(operand, shape=shape)], result)
    values.views[step.output] = PlacedView.of(made, values.dims[step.output])


def find_places(values: Values, index: int, step: Step, spec: ArgExtreme | TopK) -> None:
    """ArgMax, ArgMin and the places of TopK."""
    view = values.view(step, 0)
    of_channels = is_of_channels(step, spec.axis)
    layout = view.stored.layout if isinstance(spec, ArgExtreme) and of_channels else "planes"
    operand = values.operand(step, 0, view, step.view, layout)
    if layout == "planes":
        operand = replace(operand, shape=_along(view.dims, spec.axis))
    key = values.direct.get(step.output, stored_key(step.output, "integers"))
    made = values.calls.call(values.op_of(index, layout), operand.shape, (operand.key,), key, DType.INT64, index)
    values.integers[step.output] = Stored(key, made, "integers")


def take_elements(values: Values, index: int, step: Step, spec: GatherElements) -> None:
    """Values by their places, which another step has found."""
    view, dims = values.view(step, 0), values.dims[step.output]
    operand = values.operand(step, 0, view, step.view, "planes")
    places = values.integers[operand_key(step, 1, values.integers)]
    op = _kernels.GatherElements(dims[spec.axis], spec.repeats)
    _make_planes(values, index, step, op, [replace(operand, shape=_along(view.dims, spec.axis)), places])


def put_elements(values: Values, index: int, step: Step, spec: ScatterElements) -> None:
    """Values at places, which another step has found."""
    view, dims = values.view(step, 0), values.dims[step.output]
    operand = values.operand(step, 0, view, step.view, "planes")
    places = values.integers[operand_key(step, 1, values.integers)]
    op = _kernels.ScatterElements(
        dims[spec.axis],
        reduction=spec.reduction,
        has_index_for_all=spec.repeats,
        fill=spec.fill,
        first=spec.first,
    )
    begun = [values.operand(step, 2, values.view(step, 2), step.view, "planes")] if spec.fill is None else []
    _make_planes(values, index, step, op, [replace(operand, shape=_along(view.dims, spec.axis)), places, *begun])


def read_integers(values: Values, index: int, step: Step) -> None:
    """Integers under other sizes, as floats, or rows of a table that they are the places of."""
    places = values.integers[operand_key(step, 0, values.integers)]
    if isinstance(step.spec, Reshaped):
        values.integers[step.output] = places
    elif isinstance(step.spec, GatherRows):
        view = values.view(step, 1)
        table = values.operand(step, 1, view, "rows", "planes")
        rows, columns = view.dims[0], math.prod(view.dims[1:])
        op = _kernels.GatherElements(math.prod(places.shape), has_index_for_all=True)
        _make_planes(values, index, step, op, [replace(table, shape=(1, rows, columns, 1)), places])
    else:
        _make_planes(values, index, step, values.op_of(index, "integers"), [places])


def _make_planes(values: Values, index: int, step: Step, op: _kernels.Op, operands: Sequence[Stored]) -> None:
    made = values.compute(index, step, op, operands, (values.result_key(step.output, "planes"), "planes"))
    values.views[step.output] = PlacedView.of(made, values.dims[step.output])


def deliver_integers(values: Values, step: Step) -> None:
    """Bring integers into the caller's array, if they were not written there."""
    places, out = values.integers[step.output], values.direct[step.output]
    if places.key != out:
        words = 2 * math.prod(places.shape)
        copy = _kernels.ChannelCopy([0], 0, 1, layout="planes")
        values.calls.call(copy, (1, 1, 1, words), (places.key,), out, DType.FLOAT32)


def _along(dims: Sizes, axis: int) -> Shape:
    """(n, c, h, w) of a tensor in planes, with ``axis`` as its channels."""
    at = axis % len(dims)
    return math.prod(dims[:at]), dims[at], math.prod(dims[at + 1 :]), 1
