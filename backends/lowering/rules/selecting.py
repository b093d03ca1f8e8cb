"""Where: values of one operand or of another, as a condition says that kernels read as floats."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.float_conditions import floats_of
from sift_onnx.backends.lowering.graph import is_standard_op
from sift_onnx.backends.lowering.matching.softplus import guarded_softplus
from sift_onnx.backends.lowering.rules.pairs import Operand, combined, operand_at
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step, check_type, dims_of
from sift_onnx.backends.lowering.specs import Elementwise, Reshaped

__all__ = ["selection"]


def selection(node: NodeView) -> Step | tuple[Step, ...]:
    """Where of activations and numbers; between a softplus and the same value, it is the softplus."""
    if guarded_softplus(node.graph, node.index) is not None:
        return node.step(Reshaped(), node.operand(2), operands=(2,))
    steps, condition, places = _condition(node)
    return (*steps, *_selected(node, condition, places))


def _selected(node: NodeView, condition: Operand, places: tuple[int, int]) -> tuple[Step, ...]:
    """The steps that take the input at the first of ``places`` where the condition is not zero, or else the other."""
    numbers = [_number(node, position) for position in places]
    if numbers[0] is not None and numbers[1] is not None:
        return _of_two_numbers(node, condition, numbers[0], numbers[1])
    if numbers[1] is not None:
        spec = Elementwise("where_true", fill=numbers[1])
        return combined(node, spec, (operand_at(node, places[0]), condition), node.output)[0]
    if numbers[0] is not None:
        spec = Elementwise("where_false", fill=numbers[0])
        return combined(node, spec, (operand_at(node, places[1]), condition), node.output)[0]
    first, chosen = _kept(node, condition, places[0], is_where_true=True)
    second, other = _kept(node, condition, places[1], is_where_true=False)
    # Where one of them is not chosen, it is zero.
    return (*first, *second, *combined(node, Elementwise("add"), (chosen, other), node.output)[0])


def _condition(node: NodeView) -> tuple[tuple[Step, ...], Operand, tuple[int, int]]:
    """The steps for a condition, what they make, and the inputs to be taken where it is not zero, and where it is."""
    name = floats_of(node.graph, node.input(0))
    if name:
        check_type(node.graph, name, (DType.FLOAT32,))
        return (), Operand(name, dims_of(node.graph, name, node.known_dims), node.views.get(name)), (1, 2)
    index = node.graph.producers.get(node.input(0))
    if index is not None and is_standard_op(node.graph.nodes[index], "IsNaN"):
        # What equals itself is a number.
        value = operand_at(NodeView(node.graph, index, node.views, node.known_dims), 0)
        steps, equal = combined(node, Elementwise("equal"), (value, value), node.between("is number"))
        return steps, equal, (2, 1)
    raise NotLowered("its condition is a constant, or onnxruntime computes it")


def _number(node: NodeView, position: int) -> float | None:
    values = node.known_values(position)
    others = [node.dims(other) for other in range(3) if other != position]
    if values is None or values.size != 1 or values.ndim > max(map(len, others)):
        return None
    return float(values.reshape(-1)[0])


def _kept(node: NodeView, condition: Operand, position: int, is_where_true: bool) -> tuple[tuple[Step, ...], Operand]:
    """The steps for one of the values where it is chosen, and zeros elsewhere."""
    value = operand_at(node, position)
    made = node.between(f"choice {position}")
    if value.is_constant:
        values = node.graph.values_of(value.name)
        if values is None or not np.isfinite(values).all():
            raise NotLowered(f"the constant {value.name!r} holds NaN or infinity")
        before: tuple[Step, ...] = ()
        if not is_where_true:
            zero = node.between("zero")
            node.graph.constants[zero] = gs.Constant(zero, np.zeros(1, np.float32))
            operands = (condition, Operand(zero, (1,), is_constant=True))
            before, condition = combined(node, Elementwise("equal"), operands, node.between("otherwise"))
        steps, chosen = combined(node, Elementwise("multiply"), (condition, value), made)
        return (*before, *steps), chosen
    return combined(node, Elementwise("where_true" if is_where_true else "where_false"), (value, condition), made)


def _of_two_numbers(node: NodeView, condition: Operand, number: float, other: float) -> tuple[Step, ...]:
    if condition.view is None:
        raise NotLowered("it chooses between two numbers, and onnxruntime makes its condition")
    spec = Elementwise("where_true", fill=other)
    steps, chosen = combined(node, spec, (condition, condition), node.between("other"))
    more, _ = combined(node, Elementwise("where_false", fill=number), (chosen, condition), node.output)
    return (*steps, *more)
