"""Comparisons of activations that are cast to floats: 1 where they hold, and 0.

Integers that kernels make are compared with constants as floats. Those of fewer than 24 bits are exact, and what is
rounded stays on the same side of such a constant.
"""

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
from sift_onnx.backends.lowering.specs import BinaryFunction, CastIntegers, Elementwise

__all__ = ["comparison", "is_comparison"]

_KINDS: dict[str, BinaryFunction] = {
    "Less": "less", "LessOrEqual": "less_or_equal", "Greater": "greater", "GreaterOrEqual": "greater_or_equal",
    "Equal": "equal",
}  # fmt: skip
_EXACT = 1 << 24
# The same with its operands the other way round.
_TURNED = {"Less": "Greater", "LessOrEqual": "GreaterOrEqual", "Greater": "Less", "GreaterOrEqual": "LessOrEqual"}


def is_comparison(node: NodeView) -> bool:
    """Whether a Cast makes floats of a comparison of floats."""
    index = node.graph.producers.get(node.input(0))
    if index is None or node.graph.elem_type(node.output) != DType.FLOAT32.onnx_type:
        return False
    made = node.graph.nodes[index]
    if not is_standard_op(made, *COMPARISONS):
        return False
    is_float = node.graph.elem_type(made.input[0]) == onnx.TensorProto.FLOAT
    return is_float or any(_is_made(node, name) for name in made.input)


def _is_made(node: NodeView, name: str) -> bool:
    """Whether a value is int64 that steps before a node make."""
    return name in node.views and node.graph.elem_type(name) == DType.INT64.onnx_type


def comparison(node: NodeView) -> tuple[Step, ...]:
    """The steps for a Cast of a comparison."""
    index = node.graph.producers[node.input(0)]
    compared = NodeView(node.graph, index, node.views, node.known_dims, node.types)
    if node.graph.elem_type(compared.input(0)) != DType.FLOAT32.onnx_type:
        return _of_integers(node, compared)
    op, operands = compared.op, (_operand(compared, node, 0), _operand(compared, node, 1))
    if operands[0].is_constant:
        op, operands = _TURNED.get(op, op), operands[::-1]
    if operands[0].is_constant:
        raise NotLowered("it compares constants")
    steps, _ = combined(node, Elementwise(_KINDS[op]), operands, node.output)
    return tuple(replace(step, nodes=(node.index, index)) for step in steps)


def _of_integers(node: NodeView, compared: NodeView) -> tuple[Step, ...]:
    """The steps for a comparison of integers with constants."""
    own = int(_is_made(node, compared.input(1)))
    values = compared.known_values(1 - own)
    if values is None or np.abs(values, dtype=np.float64).max(initial=0) >= _EXACT:
        raise NotLowered("it compares integers, not with constants that floats are exact for")
    name, view = compared.input(own), node.views[compared.input(own)]
    floats, number = node.between("as floats"), node.between("numbers")
    cast = Step(CastIntegers(), (name,), floats, view, view, (node.index, compared.index), dtype=DType.INT64)
    node.graph.constants[number] = gs.Constant(number, np.atleast_1d(values).astype(np.float32))
    first = Operand(floats, compared.dims(own), view)
    second = Operand(number, (1,) * max(values.ndim, 1) if values.size == 1 else values.shape, is_constant=True)
    op = _TURNED.get(compared.op, compared.op) if own else compared.op
    steps, _ = combined(node, Elementwise(_KINDS[op]), (first, second), node.output)
    return (cast, *(replace(step, nodes=(node.index, compared.index)) for step in steps))


def _operand(compared: NodeView, cast: NodeView, position: int) -> Operand:
    """An operand; a number is a constant of one axis."""
    values = compared.known_values(position)
    if values is None or values.size != 1:
        return operand_at(compared, position)
    name = cast.between(f"number {position}")
    cast.graph.constants[name] = gs.Constant(name, values.reshape(1).astype(np.float32))
    return Operand(name, (1,) * max(values.ndim, 1), is_constant=True)
