"""Activations, arithmetic of two tensors of one shape, and with constants per channel."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Literal

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.rules.moving import view_of_result
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step, View
from sift_onnx.backends.lowering.specs import RELU, Activation, ChannelScale, Elementwise

__all__ = ["activation", "arithmetic", "biased_gelu", "negate"]

# A few bytes can declare more; a vector of a value per channel is made.
_CHANNELS = 1 << 24

_KINDS: dict[str, Literal["add", "subtract", "multiply"]] = {"Add": "add", "Sub": "subtract", "Mul": "multiply"}


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


def negate(node: NodeView) -> Step:
    """Neg, channel by channel."""
    view = node.operand(0)
    channels = node.dims(0)[1 if view == "image" else -1]
    if not isinstance(channels, int) or channels > _CHANNELS:
        raise NotLowered("the number of channels is unknown")
    return node.step(ChannelScale(np.full(channels, -1, np.float32), np.zeros(channels, np.float32)), view)


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


def arithmetic(node: NodeView) -> Step:
    """Add, Sub, Mul and Div."""
    constants = [node.known_values(i) is not None for i in range(2)]
    if any(constants):
        return _with_constant(node, activation=int(constants[0]))
    if node.op not in _KINDS:
        raise NotLowered("no kernel divides two activations")
    first = int(not _is_operand_of(node.dims(1), node.dims(0)) and node.op != "Sub")
    dims = node.dims(first)
    if not _is_operand_of(node.dims(1 - first), dims):
        raise NotLowered("its operands are not known to be of one shape")
    # An operand that comes from outside, or in another view, is read as the other one is.
    known = [node.views.get(node.input(i)) for i in range(2)]
    found = known[0] or known[1]
    view = node.operand(
        first, view_of_result(node, node.output, dims) if all(known) and known[0] != known[1] else found
    )
    for position in range(2):
        node.check_float(node.input(position))
    return node.step(Elementwise(_KINDS[node.op]), view, operands=(first, 1 - first))


def _is_operand_of(dims: Dims, result: Dims) -> bool:
    """Whether a tensor is known to be repeated to the sizes of the result: they are the same, or 1.

    A table that is cut to a length has that length, or is too short, which a run finds out.
    """
    offset = len(result) - len(dims)
    return offset >= 0 and all(
        own in (1, size) or (isinstance(own, tuple) and own[0] == "cut" and own[2] == size)
        for own, size in zip(dims, result[offset:], strict=True)
    )


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
    return node.step(Elementwise(_KINDS[node.op]), view, operands=(activation, 1 - activation))


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
            raise NotLowered("no kernel divides by zero or a constant by activations")
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
