"""GELU as exporters without the operator write it: x/2 (1 + erf(x / sqrt(2))), in any order of its factors."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.strided_views import times_number

__all__ = ["GeluMatch", "find_gelus"]


@dataclass(frozen=True)
class GeluMatch:
    """One occurrence.

    Attributes:
        operand: name of x.
        nodes: indices of its nodes, ascending; the last one makes the result.
    """

    operand: str
    nodes: tuple[int, ...]


def find_gelus(graph: GraphView) -> list[GeluMatch]:
    """All occurrences whose intermediate values no other node reads."""
    found = (_match(graph, i) for i, node in enumerate(graph.nodes) if node.op_type == "Erf")
    return [gelu for gelu in found if gelu is not None]


def _match(graph: GraphView, erf: int) -> GeluMatch | None:
    scaling = graph.producers.get(graph.nodes[erf].input[0])
    if scaling is None:
        return None
    operand = _scaled_by_root(graph, scaling)
    plus_one = graph.only_reader(graph.nodes[erf].output[0])
    if operand is None or plus_one is None or graph.only_reader(graph.nodes[erf].input[0]) is None:
        return None
    if graph.nodes[plus_one].op_type != "Add" or _other_number(graph, plus_one, graph.nodes[erf].output[0]) != 1:
        return None
    nodes = {scaling, erf, plus_one}
    value, missing = graph.nodes[plus_one].output[0], {"operand", "half"}
    while missing:
        product = graph.only_reader(value)
        if product is None or graph.nodes[product].op_type != "Mul":
            return None
        factors = list(graph.nodes[product].input)
        factors.remove(value)
        taken = _factor(graph, factors[0], operand, nodes)
        if not taken or not taken <= missing:
            return None
        missing -= taken
        nodes.add(product)
        value = graph.nodes[product].output[0]
    return GeluMatch(operand, tuple(sorted(nodes)))


def _factor(graph: GraphView, name: str, operand: str, nodes: set[int]) -> set[str]:
    """Which factors of the formula ``name`` is; the node of x/2 joins ``nodes``."""
    if name == operand:
        return {"operand"}
    if graph.number(name) == 0.5:
        return {"half"}
    half = graph.producers.get(name)
    if half is None or graph.nodes[half].op_type != "Mul" or operand not in graph.nodes[half].input:
        return set()
    if _other_number(graph, half, operand) != 0.5 or graph.only_reader(name) is None:
        return set()
    nodes.add(half)
    return {"operand", "half"}


def _scaled_by_root(graph: GraphView, index: int) -> str | None:
    """x, of a node that makes x / sqrt(2)."""
    operand, factor = times_number(graph, index)
    return operand if operand and math.isclose(factor, math.sqrt(0.5), rel_tol=1e-6) else None


def _other_number(graph: GraphView, index: int, name: str) -> float | None:
    first, second = graph.nodes[index].input
    return graph.number(second if first == name else first)
