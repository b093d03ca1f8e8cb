"""GELU as exporters without the operator write it, in any order of its terms and factors.

It is ``x/2 (1 + erf(x / sqrt(2)))``, or approximately ``x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))``. The argument
is read as a polynomial in x, so that it does not matter how it is put together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op

__all__ = ["GeluMatch", "find_gelus"]

# Coefficients by power, of what the function between x and its factor is of.
Polynomial = dict[int, float]
_ROOT = math.sqrt(2 / math.pi)
_FUNCTIONS: Mapping[str, tuple[str, Polynomial]] = {
    "Erf": ("gelu", {1: math.sqrt(0.5)}),
    "Tanh": ("gelu_tanh", {1: _ROOT, 3: 0.044715 * _ROOT}),
}
_DEGREE = 3
# Of a polynomial: exporters need six at most.
_MOST_NODES = 12


@dataclass(frozen=True)
class GeluMatch:
    """One occurrence.

    Attributes:
        operand: name of x.
        activation: ``gelu``, or ``gelu_tanh`` for the approximation.
        nodes: indices of its nodes, ascending; the last one makes the result.
    """

    operand: str
    activation: str
    nodes: tuple[int, ...]


def find_gelus(graph: GraphView) -> list[GeluMatch]:
    """All occurrences whose intermediate values no other node reads."""
    found = (_match(graph, i) for i, node in enumerate(graph.nodes) if is_standard_op(node, *_FUNCTIONS))
    return [gelu for gelu in found if gelu is not None]


def _match(graph: GraphView, function: int) -> GeluMatch | None:
    name, wanted = _FUNCTIONS[graph.nodes[function].op_type]
    made = graph.nodes[function].output[0]
    plus_one = graph.only_reader(made)
    if (
        plus_one is None
        or not is_standard_op(graph.nodes[plus_one], "Add")
        or _other_number(graph, plus_one, made) != 1
    ):
        return None
    for operand in _values_before(graph, graph.nodes[function].input[0]):
        nodes: set[int] = set()
        if not _is_close(_polynomial(graph, graph.nodes[function].input[0], operand, nodes), wanted, graph.rounding):
            continue
        nodes |= {function, plus_one}
        if not _multiply(graph, graph.nodes[plus_one].output[0], operand, nodes):
            return None
        last = max(nodes)
        if all(graph.is_only_read_by(output, nodes) for i in nodes - {last} for output in graph.nodes[i].output):
            return GeluMatch(operand, name, tuple(sorted(nodes)))
    return None


def _multiply(graph: GraphView, value: str, operand: str, nodes: set[int]) -> bool:
    """Whether ``value`` is multiplied by x and by a half, in whatever order; the nodes join ``nodes``."""
    missing = {"operand", "half"}
    while missing:
        product = graph.only_reader(value)
        if product is None or not is_standard_op(graph.nodes[product], "Mul"):
            return False
        factors = list(graph.nodes[product].input)
        factors.remove(value)
        taken = _factor(graph, factors[0], operand, nodes)
        if not taken or not taken <= missing:
            return False
        missing -= taken
        nodes.add(product)
        value = graph.nodes[product].output[0]
    return True


def _factor(graph: GraphView, name: str, operand: str, nodes: set[int]) -> set[str]:
    """Which factors of the formula ``name`` is; the nodes of x/2 join ``nodes``."""
    if name == operand:
        return {"operand"}
    if graph.number(name) == 0.5:
        return {"half"}
    halving: set[int] = set()
    if _polynomial(graph, name, operand, halving) != {1: 0.5}:
        return set()
    nodes |= halving
    return {"operand", "half"}


def _values_before(graph: GraphView, name: str) -> Iterator[str]:
    """What an expression may be of, the nearest first."""
    seen = [name]
    for value in seen:
        yield value
        index = graph.producers.get(value)
        if index is not None and len(seen) < _MOST_NODES and _is_arithmetic(graph.nodes[index]):
            seen += [n for n in graph.nodes[index].input if n not in seen and graph.number(n) is None]


def _polynomial(graph: GraphView, name: str, operand: str, nodes: set[int]) -> Polynomial | None:
    """``name`` as a polynomial in ``operand``, whose nodes join ``nodes``; None if it is none of a low degree."""
    if name == operand:
        return {1: 1.0}
    number = graph.number(name)
    if number is not None:
        return {0: number}
    index = graph.producers.get(name)
    if index is None or len(nodes) > _MOST_NODES or not _is_arithmetic(graph.nodes[index]):
        return None
    nodes.add(index)
    first = _polynomial(graph, graph.nodes[index].input[0], operand, nodes)
    second = None if first is None else _polynomial(graph, graph.nodes[index].input[1], operand, nodes)
    if first is None or second is None:
        return None
    match graph.nodes[index].op_type:
        case "Add":
            return {power: first.get(power, 0) + second.get(power, 0) for power in first | second}
        case "Mul":
            return _product(first, second)
        case "Div" if second.keys() == {0} and second[0] != 0:
            return {power: factor / second[0] for power, factor in first.items()}
        case "Pow" if second in ({0: 2}, {0: 3}):
            square = _product(first, first)
            return square if second == {0: 2} or square is None else _product(square, first)
    return None


def _product(first: Polynomial, second: Polynomial) -> Polynomial | None:
    result: Polynomial = {}
    for i, a in first.items():
        for j, b in second.items():
            result[i + j] = result.get(i + j, 0) + a * b
    return result if max(result) <= _DEGREE else None


def _is_close(found: Polynomial | None, wanted: Polynomial, rounding: float) -> bool:
    return (
        found is not None
        and found.keys() == wanted.keys()
        and all(math.isclose(found[power], wanted[power], rel_tol=rounding) for power in wanted)
    )


def _other_number(graph: GraphView, index: int, name: str) -> float | None:
    first, second = graph.nodes[index].input
    return graph.number(second if first == name else first)


def _is_arithmetic(node: onnx.NodeProto) -> bool:
    return is_standard_op(node, "Add", "Mul", "Div", "Pow")
