"""Activations, arithmetic of two tensors of one shape, and with constants per channel."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.matching.softplus import guarded_softplus
from sift_onnx.backends.lowering.rules.moving import view_of_result
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step, View
from sift_onnx.backends.lowering.specs import (
    RELU,
    Activation,
    ChannelCombine,
    ChannelScale,
    Elementwise,
    Reshaped,
    UnaryFunction,
)

__all__ = [
    "activation",
    "arithmetic",
    "biased_gelu",
    "bounded",
    "function",
    "negate",
    "parametric_relu",
    "power",
    "selection",
]

# ONNX's defaults of alpha and gamma.
_SELU = (1.67326319217681884765625, 1.05070102214813232421875)
# A few bytes can declare more; a vector of a value per channel is made.
_CHANNELS = 1 << 24

_KINDS: dict[str, Literal["add", "subtract", "multiply"]] = {"Add": "add", "Sub": "subtract", "Mul": "multiply"}

_FUNCTIONS: dict[str, UnaryFunction] = {
    "Sqrt": "square_root", "Reciprocal": "reciprocal", "Exp": "exponential", "Softplus": "softplus",
}  # fmt: skip


def activation(node: NodeView) -> Step:
    """An activation on its own; operators before it take it in."""
    view = node.operand(0)
    return node.step(Elementwise("first", _activation_of(node)), view)


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


def power(node: NodeView) -> Step:
    """Pow with an exponent of two, as after a ReLU, or of a half."""
    exponent = node.known_values(1)
    number = float(exponent.reshape(-1)[0]) if exponent is not None and exponent.size == 1 else 0.0
    if number == 0.5:
        return node.step(Elementwise("square_root"), node.operand(0))
    if number != 2:
        raise NotLowered("the kernels have squares and square roots, and no other power")
    return node.step(Elementwise("multiply"), node.operand(0), operands=(0, 0))


def bounded(node: NodeView) -> Step:
    """Max and Min of an activation and a number."""
    values = [node.known_values(position) for position in range(len(node.proto.input))]
    bound = next((own for own in values if own is not None), None)
    if len(values) != 2 or bound is None or bound.size != 1:
        raise NotLowered("the kernels compare activations with a number")
    activation = int(values[0] is not None)
    if bound.ndim > len(node.dims(activation)):
        raise NotLowered("its result has more axes")
    number = float(bound.reshape(-1)[0])
    ends = (number, math.inf) if node.op == "Max" else (-math.inf, number)
    return node.step(Elementwise("first", ("clip", *ends)), node.operand(activation), operands=(activation,))


def function(node: NodeView) -> Step:
    """Sqrt, Reciprocal, Exp and Softplus."""
    return node.step(Elementwise(_FUNCTIONS[node.op]), node.operand(0))


def selection(node: NodeView) -> Step:
    """Where that selects between a softplus and the same value."""
    if guarded_softplus(node.graph, node.index) is None:
        raise NotLowered("the kernels select between a softplus and its operand, and nothing else")
    return node.step(Reshaped(), node.operand(2), operands=(2,))


def negate(node: NodeView) -> Step:
    """Neg, channel by channel."""
    return _negative(node, 0, node.operand(0))


def _negative(node: NodeView, position: int, view: View) -> Step:
    channels = node.dims(position)[1 if view == "image" else -1]
    if not isinstance(channels, int) or channels > _CHANNELS:
        raise NotLowered("the number of channels is unknown")
    spec = ChannelScale(np.full(channels, -1, np.float32), np.zeros(channels, np.float32))
    return node.step(spec, view, operands=(position,))


def _activation_of(node: NodeView) -> Activation:
    match node.op:
        case "Relu":
            return RELU
        case "Clip":
            return ("clip", _bound(node, 1, "min", -math.inf), _bound(node, 2, "max", math.inf))
        case "LeakyRelu":
            return ("leaky", float(node.attribute("alpha", 0.01)), 0.0)
        case "HardSigmoid":
            return ("hard_sigmoid", float(node.attribute("alpha", 0.2)), float(node.attribute("beta", 0.5)))
        case "HardSwish":
            return ("hard_swish", 0.0, 0.0)
        case "Gelu" if node.attribute("approximate", "none") == "tanh":
            return ("gelu_tanh", 0.0, 0.0)
        case "Gelu":
            return ("gelu", 0.0, 0.0)
        case "Mish":
            return ("mish", 0.0, 0.0)
        case "Elu":
            return ("elu", float(node.attribute("alpha", 1.0)), 1.0)
        case "Selu":
            return ("elu", float(node.attribute("alpha", _SELU[0])), float(node.attribute("gamma", _SELU[1])))
        case "Abs":
            return ("leaky", -1.0, 0.0)
        case "Sigmoid" | "Tanh":
            return (node.op.lower(), 0.0, 0.0)
    raise NotLowered(f"no kernel for {node.op} with approximate={node.attribute('approximate')!r}")


def _bound(node: NodeView, position: int, attribute: str, default: float) -> float:
    if not node.input(position):
        return float(node.attribute(attribute, default))
    value = node.array(position)
    if value is None or value.size != 1:
        raise NotLowered(f"its {attribute} is no constant")
    return float(value.reshape(-1)[0])


def arithmetic(node: NodeView) -> Step | tuple[Step, ...]:
    """Add, Sub, Mul and Div."""
    constants = [node.known_values(i) is not None for i in range(2)]
    if node.op == "Div" and constants == [True, False]:
        return _divided_constant(node)
    if any(constants):
        return _with_constant(node, activation=int(constants[0]))
    for position in range(2):
        node.check_activation(node.input(position))
    if node.op == "Div":
        return _quotient(node)
    for image, other in ((0, 1), (1, 0)):
        is_image = node.views.get(node.input(image)) != "rows"
        if is_image and _is_value_per_channel(node.dims(other), node.dims(image)):
            return _with_value_per_channel(node, image, other)
    if node.dims(0) != node.dims(1):
        return _of_two_sizes(node)
    return node.step(Elementwise(_KINDS[node.op]), _common_view(node, 0), operands=(0, 1))


def _quotient(node: NodeView) -> Step:
    """Of two activations, of which the divisor may have one position where the dividend has more."""
    if not _is_operand_of(node.dims(1), node.dims(0)):
        raise NotLowered("its divisor is not known to have the sizes of its dividend, or one position")
    repeats = node.dims(0) != node.dims(1)
    return node.step(Elementwise("divide", repeats=repeats), _common_view(node, 0), operands=(0, 1))


def _divided_constant(node: NodeView) -> tuple[Step, ...]:
    """A constant by an activation: the reciprocal of that, scaled."""
    view = node.operand(1)
    dims = node.dims(1)
    channels = dims[1 if view == "image" else -1]
    if not isinstance(channels, int):
        raise NotLowered("the number of channels is unknown")
    scale = _per_channel(node, 0, 1 if view == "image" else len(dims) - 1, len(dims), channels)
    inverse = replace(node.step(Elementwise("reciprocal"), view, operands=(1,)), output=node.between("reciprocal"))
    scaled = node.step(ChannelScale(scale, np.zeros(channels, np.float32)), view)
    return inverse, replace(scaled, inputs=(inverse.output,))


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
    if view != "image" or not _may_broadcast(node.dims(0), node.dims(1)):
        raise NotLowered("its operands are not known to be of one shape")
    return node.step(Elementwise(_KINDS[node.op], broadcasts=True), view, operands=(0, 1))


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


def _with_constant(node: NodeView, activation: int) -> Step:
    view = node.operand(activation)
    try:
        return _per_channel_step(node, activation, view)
    except NotLowered:
        if len(node.dims(activation)) == 4 and node.input(activation) in node.views:
            with suppress(NotLowered):
                return _per_channel_step(node, activation, "rows" if view == "image" else "image")
        if not _is_table(node, activation):
            raise
    return node.step(Elementwise(_KINDS[node.op], repeats=True), view, operands=(activation, 1 - activation))


def _is_table(node: NodeView, activation: int) -> bool:
    """Whether the constant is an operand of an addition or a product, and the other one has the result's sizes."""
    values = node.array(1 - activation)  # a number is no table
    if values is None or values.dtype != np.float32 or values.ndim < 2 or node.op not in _KINDS:
        return False
    if node.op == "Sub" and activation == 1:
        return False
    return _is_operand_of(values.shape, node.dims(activation))


def _per_channel_step(node: NodeView, activation: int, view: View) -> Step:
    dims = node.dims(activation)
    axis = 1 if view == "image" else len(dims) - 1
    channels = dims[axis]
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
    if channels > _CHANNELS:
        raise NotLowered(f"{channels} channels are more than kernels are made for")
    return np.ascontiguousarray(np.broadcast_to(values.reshape(-1), (channels,)))
