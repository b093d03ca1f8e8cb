"""Mish as exporters without the operator write it: ``x tanh(softplus(x))``."""

from __future__ import annotations

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.matching.gelu import GeluMatch

__all__ = ["find_mishes"]


def find_mishes(graph: GraphView) -> list[GeluMatch]:
    """All occurrences whose intermediate values no other node reads."""
    found = (_match(graph, index) for index, node in enumerate(graph.nodes) if is_standard_op(node, "Softplus"))
    return [mish for mish in found if mish is not None]


def _match(graph: GraphView, softplus: int) -> GeluMatch | None:
    operand = graph.nodes[softplus].input[0]
    tanh = graph.only_reader(graph.nodes[softplus].output[0])
    if tanh is None or not is_standard_op(graph.nodes[tanh], "Tanh"):
        return None
    product = graph.only_reader(graph.nodes[tanh].output[0])
    if product is None or not is_standard_op(graph.nodes[product], "Mul"):
        return None
    if sorted(graph.nodes[product].input) != sorted((operand, graph.nodes[tanh].output[0])):
        return None
    return GeluMatch(operand, "mish", (softplus, tanh, product))
