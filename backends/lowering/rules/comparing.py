"""Comparisons of activations that are cast to floats: 1 where they hold, and 0."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.float_conditions import COMPARISONS
from sift_onnx.backends.lowering.graph import is_standard_op
from sift_onnx.backends.lowering.rules.pairs import Operand, combined, operand_at
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step
from sift_onnx.backends.lowering.specs import BinaryFunction, Elementwise

__all__ = ["comparison", "is_comparison"]

_KINDS: dict[str, BinaryFunction] = {
    "Less": "less", "LessOrEqual": "less_or_equal", "Greater": "greater", "GreaterOrEqual": "greater_or_equal",
    "Equal": "equal",
}  # fmt: skip
# The same with its operands the other way round.
_TURNED = {"Less": "Greater", "LessOrEqual": "GreaterOrEqual", "Greater": "Less", "GreaterOrEqual": "LessOrEqual"}


def is_comparison(node: NodeView) -> bool:
    """Whether a Cast makes floats of a comparison of floats."""
    index = node.graph.producers.get(node.input(0))
    if index is None or node.graph.elem_type(node.output) != DType.FLOAT32.onnx_type:
        return False
    made = node.graph.nodes[index]
    return is_standard_op(made, *COMPARISONS) and node.graph.elem_type(made.input[0]) == onnx.TensorProto.FLOAT


def comparison(node: NodeView) -> tuple[Step, ...]:
    """The steps for a Cast of a comparison."""
    index = node.graph.producers[node.input(0)]
    compared = NodeView(node.graph, index, node.views, node.known_dims, node.types)
    op, operands = compared.op, (_operand(compared, node, 0), _operand(compared, node, 1))
    if operands[0].is_constant:
        op, operands = _TURNED.get(op, op), operands[::-1]
    if operands[0].is_constant:
        raise NotLowered("it compares constants")
    steps, _ = combined(node, Elementwise(_KINDS[op]), operands, node.output)
    return tuple(replace(step, nodes=(node.index, index)) for step in steps)


def _operand(compared: NodeView, cast: NodeView, position: int) -> Operand:
    """An operand; a number is a constant of one axis."""
    values = compared.known_values(position)
    if values is None or values.size != 1:
        return operand_at(compared, position)
    name = cast.between(f"number {position}")
    cast.graph.constants[name] = gs.Constant(name, values.reshape(1).astype(np.float32))
    return Operand(name, (1,) * max(values.ndim, 1), is_constant=True)
