"""Mish as exporters without the operator write it: ``x tanh(softplus(x))``, of a softplus in either spelling."""

from __future__ import annotations

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.matching.gelu import GeluMatch
from sift_onnx.backends.lowering.matching.softplus import guarded_softplus

__all__ = ["find_mishes"]


def find_mishes(graph: GraphView) -> list[GeluMatch]:
    """All occurrences whose intermediate values no other node reads."""
    found = (_match(graph, index) for index, node in enumerate(graph.nodes) if is_standard_op(node, "Softplus"))
    return [mish for mish in found if mish is not None]


def _match(graph: GraphView, softplus: int) -> GeluMatch | None:
    operand = graph.nodes[softplus].input[0]
    nodes: tuple[int, ...] = (softplus,)
    tanh = graph.only_reader(graph.nodes[softplus].output[0])
    guard = guarded_softplus(graph, tanh) if tanh is not None else None
    if tanh is not None and guard is not None:
        if graph.only_reader(graph.nodes[guard[1]].output[0]) != tanh:
            return None
        nodes = tuple(sorted((*guard, tanh)))
        tanh = graph.only_reader(graph.nodes[tanh].output[0])
    if tanh is None or not is_standard_op(graph.nodes[tanh], "Tanh"):
        return None
    product = graph.only_reader(graph.nodes[tanh].output[0])
    if product is None or not is_standard_op(graph.nodes[product], "Mul"):
        return None
    if sorted(graph.nodes[product].input) != sorted((operand, graph.nodes[tanh].output[0])):
        return None
    return GeluMatch(operand, "mish", (*nodes, tanh, product))
