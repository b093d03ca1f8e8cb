"""Between which numbers added features lie: some operators are finite for a part of the numbers only.

What is added is known well enough. A layer whose weights are pruned gives its bias, zero or a small shift, and what
follows is a function of that. The range of a tensor that grows is that of its added elements, of any other tensor that
of all of its elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.feature_maps.context import FeatureMapContext
from sift_onnx.feature_maps.maps import FeatureMaps
from sift_onnx.graphs.constants import array_of, constant_values, shape_of
from sift_onnx.operators.traits import MOVING

__all__ = ["ANYTHING", "LARGEST_SHIFT", "Range", "range_of_output"]

Range = tuple[float, float]

ANYTHING: Range = (-math.inf, math.inf)
# Shifts of added features are positive and no larger; nor is anything else that is added to parameters.
LARGEST_SHIFT = 1.5
_ADDED: Range = (0.0, LARGEST_SHIFT)
# Larger constants hold whatever they hold.
_READ_UP_TO = 4096

_SAME = (MOVING - {"Concat"}) | {
    *("Cast", "CastLike", "Dropout", "ReduceMax", "ReduceMean", "ReduceMin", "MaxPool", "AveragePool"),
    *("GlobalAveragePool", "GlobalMaxPool", "RotaryEmbedding"),
}
_RISING: dict[str, Callable[[float], float]] = {
    "Ceil": lambda x: x if math.isinf(x) else float(math.ceil(x)),
    "Erf": math.erf,
    "Exp": lambda x: math.exp(min(x, 700.0)) if x < 700 else math.inf,
    "Floor": lambda x: x if math.isinf(x) else float(math.floor(x)),
    "HardSigmoid": lambda x: min(max(0.2 * x + 0.5, 0.0), 1.0),
    "Log": lambda x: math.log(x) if x > 0 else -math.inf,
    "Relu": lambda x: max(x, 0.0),
    "Sigmoid": lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0,
    "Softplus": lambda x: x if x > 30 else math.log1p(math.exp(x)) if x > -700 else 0.0,
    "Sqrt": lambda x: math.sqrt(max(x, 0.0)),
    "Tanh": math.tanh,
}


def range_of_output(ctx: FeatureMapContext, maps: FeatureMaps, known: Mapping[str, Range]) -> Range:
    """The range of a node's first output.

    Args:
        ctx: the node.
        maps: which knows what grows.
        known: ranges of what other nodes give.
    """
    node: gs.Node = ctx.node
    operands = [_range_of(tensor, maps, known) for tensor in node.inputs]
    if ctx.has_weight:
        features = [axis for axis in ctx.output() if axis.grows]
        return _ADDED if len(features) == 1 and node.op in ("Conv", "Gemm", "MatMul") else ANYTHING
    if node.op in _SAME:
        return operands[0]
    if node.op in _RISING:
        low, high = operands[0]
        return _RISING[node.op](low), _RISING[node.op](high)
    if node.op == "Concat":
        return min(low for low, _ in operands), max(high for _, high in operands)
    rule = _RULES.get(node.op)
    return rule(node, operands) if rule is not None else ANYTHING


def _range_of(tensor: gs.Tensor, maps: FeatureMaps, known: Mapping[str, Range]) -> Range:
    constant = constant_values(tensor)
    if constant is None:
        return known.get(tensor.name, ANYTHING)
    if maps.grows(tensor.name):
        return _ADDED
    if math.prod(shape_of(constant)) > _READ_UP_TO:
        return ANYTHING
    values = array_of(constant)
    if not values.size or values.dtype.kind in "OUS" or not np.isfinite(values.astype(np.float64)).all():
        return ANYTHING
    return float(values.min()), float(values.max())


def _sum(node: gs.Node, operands: list[Range]) -> Range:
    return sum(low for low, _ in operands), sum(high for _, high in operands)


def _difference(node: gs.Node, operands: list[Range]) -> Range:
    (low, high), (other_low, other_high) = operands
    return low - other_high, high - other_low


def _product(node: gs.Node, operands: list[Range]) -> Range:
    if node.inputs[0] is node.inputs[1]:
        return _square(operands[0])
    (a, b), (c, d) = operands
    corners = [0.0 if x == 0 or y == 0 else x * y for x in (a, b) for y in (c, d)]
    return min(corners), max(corners)


def _square(operand: Range) -> Range:
    low, high = operand
    smallest = 0.0 if low <= 0 <= high else min(low * low, high * high)
    return smallest, max(low * low, high * high)


def _quotient(node: gs.Node, operands: list[Range]) -> Range:
    return _product(node, [operands[0], _inverse(node, operands[1:])])


def _inverse(node: gs.Node, operands: list[Range]) -> Range:
    low, high = operands[0]
    return (1 / high, 1 / low) if low > 0 or high < 0 else ANYTHING


def _power(node: gs.Node, operands: list[Range]) -> Range:
    base, (low, high) = operands
    if low == high == 2:
        return _square(base)
    return (0.0, math.inf) if base[0] >= 0 or (low == high and low % 2 == 0) else ANYTHING


def _absolute(node: gs.Node, operands: list[Range]) -> Range:
    low, high = operands[0]
    return (0.0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


def _not_negative(node: gs.Node, operands: list[Range]) -> Range:
    return 0.0, math.inf


def _sign_kept(node: gs.Node, operands: list[Range]) -> Range:
    low, high = operands[0]
    return (0.0 if low >= 0 else -math.inf), (0.0 if high <= 0 else math.inf)


def _largest(node: gs.Node, operands: list[Range]) -> Range:
    return max(low for low, _ in operands), max(high for _, high in operands)


def _smallest(node: gs.Node, operands: list[Range]) -> Range:
    return min(low for low, _ in operands), min(high for _, high in operands)


def _clipped(node: gs.Node, operands: list[Range]) -> Range:
    low, high = operands[0]
    least = operands[1][0] if len(operands) > 1 and not node.inputs[1].is_empty() else node.attrs.get("min", -math.inf)
    most = operands[2][1] if len(operands) > 2 and not node.inputs[2].is_empty() else node.attrs.get("max", math.inf)
    return min(max(low, least), most), max(min(high, most), least)


def _negative(node: gs.Node, operands: list[Range]) -> Range:
    low, high = operands[0]
    return -high, -low


def _normalized(node: gs.Node, operands: list[Range]) -> Range:
    """Added means are zero, added variances and scales one."""
    low, high = operands[0]
    return low, high + LARGEST_SHIFT


_RULES: dict[str, Callable[[gs.Node, list[Range]], Range]] = {
    "Abs": _absolute,
    "Add": _sum,
    "BatchNormalization": _normalized,
    "Clip": _clipped,
    "Div": _quotient,
    "Max": _largest,
    "Min": _smallest,
    "Mul": _product,
    "Neg": _negative,
    "Pow": _power,
    "Reciprocal": _inverse,
    "ReduceL1": _not_negative,
    "ReduceL2": _not_negative,
    "ReduceSum": _sign_kept,
    "ReduceSumSquare": _not_negative,
    "Softmax": lambda node, operands: (0.0, 1.0),
    "Sub": _difference,
    "Sum": _sum,
}
