"""Arithmetic of two tensors, and with constants per channel."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.rules.moving import moved, view_of_result
from sift_onnx.backends.lowering.rules.numbers import number_beside, with_number
from sift_onnx.backends.lowering.rules.pairs import Operand, combined, operand_at
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step, View
from sift_onnx.backends.lowering.specs import Activation, ChannelCombine, ChannelScale, Elementwise, Repeated

__all__ = ["arithmetic", "biased_gelu", "negate", "parametric_relu"]

# A few bytes can declare more; a vector of a value per channel is made.
_CHANNELS = 1 << 24

_KINDS: dict[str, Literal["add", "subtract", "multiply"]] = {"Add": "add", "Sub": "subtract", "Mul": "multiply"}


def biased_gelu(node: NodeView) -> Step:
    """BiasGelu and FastGelu, as onnxruntime's optimizers write them: a bias, which FastGelu may lack, and GELU."""
    view = node.operand(0, "rows")
    function: Activation = ("gelu" if node.op == "BiasGelu" else "gelu_tanh", 0.0, 0.0)
    if not node.input(1):
        return node.step(Elementwise("first", function), view)
    channels = node.dims(0)[-1]
    if not isinstance(channels, int):
        raise NotLowered("the number of channels is unknown")
    bias = node.float_vector(1, channels, "the bias")
    return node.step(ChannelScale(np.ones(channels, np.float32), bias, function), view)


def parametric_relu(node: NodeView) -> Step:
    """PRelu with a slope, or one per channel."""
    view = node.operand(0)
    if node.constant(1) is None:
        raise NotLowered(f"its slopes are {node.why_not_constant(1)}")
    dims = node.dims(0)
    axis = 1 if view == "image" else len(dims) - 1
    channels = dims[axis]
    if not isinstance(channels, int):
        raise NotLowered("the number of channels is unknown")
    slopes = _per_channel(node, 1, axis, len(dims), channels)
    if np.all(slopes == slopes[:1]):
        return node.step(Elementwise("first", ("leaky", float(slopes[0]), 0.0)), view)
    one, zero = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    return node.step(ChannelScale(one, zero, ("leaky", 0.0, 0.0), slopes), view)


def negate(node: NodeView) -> Step:
    """Neg."""
    return _negative(node, 0, node.operand(0))


def _negative(node: NodeView, position: int, view: View) -> Step:
    channels = node.dims(position)[1 if view == "image" else -1]
    if not isinstance(channels, int) or channels > _CHANNELS:
        return with_number(node, position, view, -1.0, "multiply")
    spec = ChannelScale(np.full(channels, -1, np.float32), np.zeros(channels, np.float32))
    return node.step(spec, view, operands=(position,))


def arithmetic(node: NodeView) -> Step | tuple[Step, ...]:
    """Add, Sub, Mul and Div."""
    constants = [node.known_values(i) is not None or _is_made_of_constants(node, i) for i in range(2)]
    if node.op == "Div" and constants == [True, False]:
        return _divided_constant(node)
    if any(constants):
        return _with_constant(node, activation=int(constants[0]))
    for position in range(2):
        node.check_activation(node.input(position))
    if node.op == "Div":
        return _of_any_sizes(node, Elementwise("divide"))
    for image, other in ((0, 1), (1, 0)):
        is_image = node.views.get(node.input(image)) != "rows"
        if is_image and _is_value_per_channel(node.dims(other), node.dims(image)):
            return _with_value_per_channel(node, image, other)
    if node.dims(0) != node.dims(1):
        return _of_two_sizes(node)
    return node.step(Elementwise(_KINDS[node.op]), _common_view(node, 0), operands=(0, 1))


def _is_made_of_constants(node: NodeView, position: int) -> bool:
    """Whether an operand follows from constants; the first one of what cannot be turned round, also from sizes."""
    name = node.input(position)
    asks_for_sizes = position == 0 and node.op in ("Div", "Sub")
    is_float = node.graph.elem_type(name) == DType.FLOAT32.onnx_type
    return is_float and (asks_for_sizes or name in node.graph.derived) and node.graph.fold(name)


def _of_any_sizes(node: NodeView, spec: Elementwise) -> tuple[Step, ...]:
    return combined(node, spec, (operand_at(node, 0), operand_at(node, 1)), node.output)[0]


def _divided_constant(node: NodeView) -> tuple[Step, ...]:
    """A constant by an activation: the reciprocal of that, scaled."""
    view = node.operand(1)
    dims = node.dims(1)
    axis = 1 if view == "image" else len(dims) - 1
    channels = dims[axis]
    inverse = replace(node.step(Elementwise("reciprocal"), view, operands=(1,)), output=node.between("reciprocal"))
    if isinstance(channels, int):
        with suppress(NotLowered):
            scale = _per_channel(node, 0, axis, len(dims), channels)
            scaled = node.step(ChannelScale(scale, np.zeros(len(scale), np.float32)), view)
            return inverse, replace(scaled, inputs=(inverse.output,))
    operands = (Operand(inverse.output, dims, view), operand_at(node, 0))
    return inverse, *combined(node, Elementwise("multiply"), operands, node.output)[0]


def _of_two_sizes(node: NodeView) -> Step | tuple[Step, ...]:
    """Operands of which one has a single position where the other one has more."""
    if node.op == "Sub" and not _is_operand_of(node.dims(1), node.dims(0)):
        view = _common_view(node, 1)
        if _is_operand_of(node.dims(0), node.dims(1)):
            return _subtracted(node, view)
    first = int(not _is_operand_of(node.dims(1), node.dims(0)) and node.op != "Sub")
    view = _common_view(node, first)
    if _is_operand_of(node.dims(1 - first), node.dims(first)):
        return node.step(Elementwise(_KINDS[node.op], repeats=True), view, operands=(first, 1 - first))
    if view == "image" and _may_broadcast(node.dims(0), node.dims(1)):
        return node.step(Elementwise(_KINDS[node.op], broadcasts=True), view, operands=(0, 1))
    return _of_any_sizes(node, Elementwise(_KINDS[node.op]))


def _subtracted(node: NodeView, view: View) -> tuple[Step, ...]:
    """An operand from one that has a single position where it has more: that one is added to its negative."""
    negative = replace(_negative(node, 1, view), output=node.between("negative"))
    total = node.step(Elementwise("add", repeats=True), view)
    return negative, replace(total, inputs=(negative.output, node.input(0)))


def _common_view(node: NodeView, first: int) -> View:
    """How both operands are read: one that comes from outside, or in another view, is read as the other one is."""
    known = [node.views.get(node.input(i)) for i in (first, 1 - first)]
    if all(known) and known[0] != known[1]:
        return node.operand(first, view_of_result(node, node.output, node.dims(first)))
    return node.operand(first, known[0] or known[1])


def _is_operand_of(dims: Dims, result: Dims) -> bool:
    """Whether a tensor is known to be repeated to the sizes of the result: they are the same, or 1.

    A table that is cut to a length has that length, or is too short, which a run finds out.
    """
    offset = len(result) - len(dims)
    return offset >= 0 and all(
        own in (1, size) or (isinstance(own, tuple) and own[0] == "cut" and own[2] == size)
        for own, size in zip(dims, result[offset:], strict=True)
    )


def _may_broadcast(first: Dims, second: Dims) -> bool:
    """Whether both are as many images of as many channels, whose heights and widths may be 1, or turn out to be one."""
    if not len(first) == len(second) == 4 or first[:2] != second[:2]:
        return False
    pairs = zip(first[2:], second[2:], strict=True)
    return all(a == b or 1 in (a, b) or not (isinstance(a, int) and isinstance(b, int)) for a, b in pairs)


def _is_value_per_channel(dims: Dims, image: Dims) -> bool:
    return len(image) == 4 and dims == (*image[:2], 1, 1) and dims != image


def _with_value_per_channel(node: NodeView, image: int, other: int) -> Step:
    node.operand(image, "image")
    node.operand(other, "image")
    if node.op == "Sub" and other == 0:
        raise NotLowered("no kernel subtracts images from a value per channel")
    return node.step(ChannelCombine(_KINDS[node.op]), "image", operands=(image, other))


def _with_constant(node: NodeView, activation: int) -> Step | tuple[Step, ...]:
    view = node.operand(activation)
    spread = _spread_over_channels(node, activation)
    if spread:
        return spread
    try:
        return _per_channel_step(node, activation, view)
    except NotLowered:
        if len(node.dims(activation)) == 4 and node.input(activation) in node.views:
            with suppress(NotLowered):
                return _per_channel_step(node, activation, "rows" if view == "image" else "image")
        number = number_beside(node, activation)
        if number is not None:
            return with_number(node, activation, view, number, _KINDS["Mul" if node.op == "Div" else node.op])
    if _is_table(node, activation):
        return node.step(Elementwise(_KINDS[node.op], repeats=True), view, operands=(activation, 1 - activation))
    value, constant = operand_at(node, activation), operand_at(node, 1 - activation)
    if node.op == "Sub" and activation == 1:
        negative = replace(_negative(node, 1, view), output=node.between("negative"))
        value = Operand(negative.output, value.dims, view)
        return negative, *combined(node, Elementwise("add"), (value, constant), node.output)[0]
    kind = "divide" if node.op == "Div" else _KINDS[node.op]
    return combined(node, Elementwise(kind), (value, constant), node.output)[0]


def _spread_over_channels(node: NodeView, activation: int) -> tuple[Step, ...]:
    """The steps for one channel and a constant of several, as angles of sinusoidal embeddings are made; else none."""
    values, dims = node.known_values(1 - activation), node.dims(activation)
    assert values is not None
    shape = (*[1] * (len(dims) - values.ndim), *values.shape)
    axes = [axis for axis, size in enumerate(shape) if size != 1]
    if len(axes) != 1 or len(shape) != len(dims) or dims[axes[0]] != 1:
        return ()
    (axis,) = axes
    is_image = len(dims) == 4 and axis == 1
    if not is_image and axis != len(dims) - 1:
        return ()
    view: View = "image" if is_image else "rows"
    repeated = moved(node, Repeated(((axis, shape[axis]),)), node.between("repeated"), activation)
    step = _per_channel_step(node, activation, view, shape[axis])
    return replace(repeated, result_view=view), replace(step, inputs=(repeated.output,))


def _is_table(node: NodeView, activation: int) -> bool:
    """Whether the constant is an operand of an addition or a product, and the other one has the result's sizes."""
    values = node.array(1 - activation)
    if values is None or values.dtype != np.float32 or (values.ndim < 2 and values.size != 1) or node.op not in _KINDS:
        return False
    if node.op == "Sub" and activation == 1:
        return False
    return _is_operand_of(values.shape, node.dims(activation))


def _per_channel_step(node: NodeView, activation: int, view: View, count: int | None = None) -> Step:
    """Arithmetic with a constant per channel, of which there are ``count``; None is as many as the activation has."""
    dims = node.dims(activation)
    axis = 1 if view == "image" else len(dims) - 1
    channels = dims[axis] if count is None else count
    if not isinstance(channels, int):
        raise NotLowered("the number of channels is unknown")
    values = _per_channel(node, 1 - activation, axis, len(dims), channels)
    one, zero = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    reverse = activation == 1
    match node.op:
        case "Add":
            scale, shift = one, values
        case "Sub":
            scale, shift = (-one, values) if reverse else (one, -values)
        case "Mul":
            scale, shift = values, zero
        case "Div" if not reverse and np.all(values != 0) and np.isfinite(1 / values).all():
            scale, shift = (1 / values).astype(np.float32), zero
        case _:
            raise NotLowered("no kernel divides by zero")
    return node.step(ChannelScale(scale, shift), view, operands=(activation,))


def _per_channel(node: NodeView, position: int, axis: int, rank: int, channels: int) -> npt.NDArray[np.float32]:
    values = node.known_values(position)
    assert values is not None
    if values.dtype != np.float32:
        raise NotLowered(f"the constant {node.input(position)!r} is {values.dtype}")
    shape = (1,) * (rank - values.ndim) + values.shape
    if len(shape) != rank or any(size != 1 for i, size in enumerate(shape) if i != axis):
        raise NotLowered(f"the constant {node.input(position)!r} differs within a channel: {list(values.shape)}")
    if not np.isfinite(values).all():
        raise NotLowered(f"the constant {node.input(position)!r} holds NaN or infinity")
    if values.size not in (1, channels):
        raise NotLowered(f"the constant {node.input(position)!r} has {values.size} values for {channels} channels")
    if channels > _CHANNELS:
        raise NotLowered(f"{channels} channels are more than kernels are made for")
    return np.ascontiguousarray(np.broadcast_to(values.reshape(-1), (channels,)))
