"""Nodes that multiply by a number."""

from __future__ import annotations

import math

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op

__all__ = ["times_number"]


def times_number(graph: GraphView, index: int) -> tuple[str, float]:
    """Of a node that makes a value times a number: the value's name and the number; no name if it is no such node."""
    node = graph.nodes[index]
    if is_standard_op(node, "Div"):
        value = _number(graph, node.input[1])
        return (node.input[0], 1 / value) if value else ("", 1.0)
    if is_standard_op(node, "Mul"):
        for i in range(2):
            value = _number(graph, node.input[i])
            if value is not None and math.isfinite(value):
                return node.input[1 - i], value
    return "", 1.0


def _number(graph: GraphView, name: str) -> float | None:
    """The number that a tensor of one element is, quantized or not."""
    index = graph.producers.get(name)
    if index is not None and is_standard_op(graph.nodes[index], "DequantizeLinear"):
        graph.fold(name)
    return graph.number(name)
