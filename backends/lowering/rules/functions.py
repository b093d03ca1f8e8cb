"""Functions of activations: those on their own, powers, and the larger or smaller of several."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.lowering.rules.numbers import with_number
from sift_onnx.backends.lowering.rules.pairs import combined, operand_at
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step
from sift_onnx.backends.lowering.specs import RELU, Activation, Elementwise, Reshaped, UnaryFunction

__all__ = ["activation", "bounded", "power", "sign", "unary_function"]

# Its square is more than one by the smallest number that is not zero.
_LARGE = 2.0**126
# ONNX's defaults of alpha and gamma.
_SELU = (1.67326319217681884765625, 1.05070102214813232421875)
_FUNCTIONS: dict[str, UnaryFunction] = {
    "Sqrt": "square_root", "Reciprocal": "reciprocal", "Exp": "exponential", "Softplus": "softplus",
    "Log": "logarithm", "Sin": "sine", "Cos": "cosine",
}  # fmt: skip


def activation(node: NodeView) -> Step:
    """An activation on its own; operators before it take it in."""
    view = node.operand(0)
    return node.step(Elementwise("first", _activation_of(node)), view)


def power(node: NodeView) -> Step | tuple[Step, ...]:
    """Pow: squares and roots have kernels of their own."""
    exponent = node.known_values(1)
    if exponent is None or exponent.size != 1:
        operands = (operand_at(node, 0), operand_at(node, 1))
        return combined(node, Elementwise("power"), operands, node.output)[0]
    number = float(exponent.reshape(-1)[0])
    if exponent.ndim > len(node.dims(0)):
        raise NotLowered("its result has more axes")
    if number == 0.5:
        return node.step(Elementwise("square_root"), node.operand(0))
    if number == 2:
        return node.step(Elementwise("multiply"), node.operand(0), operands=(0, 0))
    return with_number(node, 0, node.operand(0), number, "power")


def bounded(node: NodeView) -> Step | tuple[Step, ...]:
    """Max and Min of activations, constants and numbers."""
    values = [node.known_values(position) for position in range(len(node.proto.input))]
    if len(values) == 1:
        return node.step(Reshaped(), node.operand(0))
    bound = next((own for own in values if own is not None), None)
    if len(values) == 2 and bound is not None and bound.size == 1:
        return _bounded_by_number(node, int(values[0] is not None), bound)
    spec = Elementwise("maximum" if node.op == "Max" else "minimum")
    first, *others = sorted((operand_at(node, place) for place in range(len(values))), key=lambda own: own.is_constant)
    steps: list[Step] = []
    for number, other in enumerate(others, 1):
        made = node.output if number == len(others) else node.between(f"of {number + 1}")
        more, first = combined(node, spec, (first, other), made)
        steps += more
    return tuple(steps)


def _bounded_by_number(node: NodeView, activation: int, bound: npt.NDArray[np.generic]) -> Step:
    if bound.ndim > len(node.dims(activation)):
        raise NotLowered("its result has more axes")
    number = float(bound.reshape(-1)[0])
    ends = (number, math.inf) if node.op == "Max" else (-math.inf, number)
    return node.step(Elementwise("first", ("clip", *ends)), node.operand(activation), operands=(activation,))


def unary_function(node: NodeView) -> Step:
    """Sqrt, Reciprocal, Exp, Log, Sin, Cos and Softplus."""
    return node.step(Elementwise(_FUNCTIONS[node.op]), node.operand(0))


def sign(node: NodeView) -> tuple[Step, ...]:
    """Sign, as a large multiple that is cut off at -1 and 1: twice, for the smallest numbers. That of NaN is NaN."""
    between = node.between("multiple")
    spec = Elementwise("multiply", ("clip", -1.0, 1.0), repeats=True)
    first = replace(with_number(node, 0, node.operand(0), _LARGE, "multiply"), spec=spec, output=between)
    return first, replace(first, inputs=(between, first.inputs[1]), output=node.output, view=first.result_view)


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
