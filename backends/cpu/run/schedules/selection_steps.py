"""Steps that find places of values, and take values by their places.

Places are int64 in the model's order. Values are read in planes, where any axis can be that of channels, with the axes
before it as images and those behind it as pixels. Only for channels that lie in lanes, there is a kernel that finds the
extremes in each lane.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape, Sizes, kernel_shape, operand_key
from sift_onnx.backends.cpu.run.schedules.placed_views import PlacedView, Stored
from sift_onnx.backends.cpu.run.schedules.values import Values
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import ArgExtreme, GatherElements, Reshaped, TopK

__all__ = ["deliver_integers", "find_places", "read_integers", "take_elements"]


def find_places(values: Values, index: int, step: Step, spec: ArgExtreme | TopK) -> None:
    """ArgMax, ArgMin and the places of TopK."""
    view = values.view(step, 0)
    of_channels = spec.axis == (1 if step.view == "image" else -1)
    layout = view.stored.layout if isinstance(spec, ArgExtreme) and of_channels else "planes"
    operand = values.operand(step, 0, view, step.view, layout)
    if layout == "planes":
        operand = replace(operand, shape=_along(view.dims, spec.axis))
    key = values.direct.get(step.output, f"{step.output}:integers")
    made = values.calls.call(values.op_of(index, layout), operand.shape, (operand.key,), key, DType.INT64, index)
    values.integers[step.output] = Stored(key, made, "integers")


def take_elements(values: Values, index: int, step: Step, spec: GatherElements) -> None:
    """Values by their places, which another step has found."""
    view, dims = values.view(step, 0), values.dims[step.output]
    operand = values.operand(step, 0, view, step.view, "planes")
    places = values.integers[operand_key(step, 1, values.integers)]
    op = _kernels.GatherElements(dims[spec.axis])
    result = values.result_key(step.output, "planes")
    read = replace(operand, shape=_along(view.dims, spec.axis))
    made = values.compute(index, step, op, [read, places], (result, "planes"))
    _place(values, step, made)


def read_integers(values: Values, index: int, step: Step) -> None:
    """Integers under other sizes, or as floats."""
    places = values.integers[operand_key(step, 0, values.integers)]
    if isinstance(step.spec, Reshaped):
        values.integers[step.output] = places
        return
    op = values.op_of(index, "integers")
    made = values.compute(index, step, op, [places], (values.result_key(step.output, "planes"), "planes"))
    _place(values, step, made)


def deliver_integers(values: Values, step: Step) -> None:
    """Bring integers into the caller's array, if they were not written there."""
    places, out = values.integers[step.output], values.direct[step.output]
    if places.key != out:
        words = 2 * math.prod(places.shape)
        copy = _kernels.ChannelCopy([0], 0, 1, layout="planes")
        values.calls.call(copy, (1, 1, 1, words), (places.key,), out, DType.FLOAT32)


def _place(values: Values, step: Step, made: Stored) -> None:
    dims = values.dims[step.output]
    stored = replace(made, shape=kernel_shape(dims, step.result_view))
    values.views[step.output] = PlacedView.of(stored, dims)


def _along(dims: Sizes, axis: int) -> Shape:
    """(n, c, h, w) of a tensor in planes, with ``axis`` as its channels."""
    at = axis % len(dims)
    return math.prod(dims[:at]), dims[at], math.prod(dims[at + 1 :]), 1
