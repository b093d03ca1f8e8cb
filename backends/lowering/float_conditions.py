"""The graph with conditions of Where as floats, which kernels read: 1 where they are true, and 0.

A condition from outside is cast where it is smallest, before it is repeated. One that compares activations is written
as arithmetic of comparisons, so that kernels make it: a and b is their product, a or b the larger one. So is one that
the model itself casts to floats.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.graph_writer import GraphWriter
from sift_onnx.backends.lowering.matching.cached_attention import find_cached_attentions
from sift_onnx.backends.lowering.matching.softplus import guarded_softplus

__all__ = ["COMPARISONS", "floats_of", "with_float_conditions"]

COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
_LAYERS = ("Conv", "ConvTranspose", "Gemm", "GRU", "LSTM", "MatMul", "RNN")
_MOVES = ("Expand", "Flatten", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")


def with_float_conditions(graph: GraphView) -> GraphView:
    """``graph``, or one that computes the same values, in which kernels can read the conditions of Where."""
    behind = _behind_layers(graph)
    found, casts = _selections(graph, behind), _casts(graph, behind)
    if not found and not casts:
        return graph
    conditions = _FloatConditions(graph, behind)
    for index, node in enumerate(graph.nodes):
        copy = conditions.writer.copied(node)
        if index in found:
            copy.input[0] = conditions.boolean(node)
        elif index in casts:
            copy = onnx.helper.make_node("Identity", [conditions.floats(node.input[0])], node.output, node.name)
        conditions.writer.write(index, copy)
    return conditions.writer.written()


def floats_of(graph: GraphView, name: str) -> str:
    """The floats that a condition is true for where they are not zero; empty for one that is made otherwise."""
    index = graph.producers.get(name)
    if index is None or not is_standard_op(graph.nodes[index], "Cast"):
        return ""
    operand = graph.nodes[index].input[0]
    is_float = graph.elem_type(operand) == onnx.TensorProto.FLOAT and graph.elem_type(name) == onnx.TensorProto.BOOL
    return operand if is_float and operand not in graph.constants else ""


def _behind_layers(graph: GraphView) -> set[str]:
    """Values that depend on the result of a layer, and not by their sizes alone."""
    found: set[str] = set()
    for node in graph.nodes:
        if is_standard_op(node, *_LAYERS) or (node.op_type != "Shape" and not found.isdisjoint(node.input)):
            found.update(filter(None, node.output))
    return found


def _selections(graph: GraphView, behind: set[str]) -> set[int]:
    """Indices of the nodes whose condition kernels may read."""
    found = set()
    for index, node in enumerate(graph.nodes):
        if not is_standard_op(node, "Where") or graph.elem_type(node.output[0]) != onnx.TensorProto.FLOAT:
            continue
        if behind.isdisjoint(node.input) or node.input[0] in graph.constants or node.input[0] in graph.derived:
            continue
        if guarded_softplus(graph, index) is None and not _asks_for_nan(graph, node.input[0]):
            found.add(index)
    if found:
        # Their kernel reads booleans.
        found.difference_update(*(match.nodes for match in find_cached_attentions(graph)))
    return found


def _casts(graph: GraphView, behind: set[str]) -> set[int]:
    """Indices of the nodes that make floats of a condition which is made of others; a rule has those of comparisons."""
    return {
        index
        for index, node in enumerate(graph.nodes)
        if is_standard_op(node, "Cast")
        and graph.elem_type(node.output[0]) == onnx.TensorProto.FLOAT
        and graph.elem_type(node.input[0]) == onnx.TensorProto.BOOL
        and node.input[0] in behind
        and not is_standard_op(graph.nodes[graph.producers[node.input[0]]], *COMPARISONS)
    }


def _asks_for_nan(graph: GraphView, condition: str) -> bool:
    """Whether a condition is that of weights of attention that become zero where they are NaN."""
    index = graph.producers.get(condition)
    return index is not None and is_standard_op(graph.nodes[index], "IsNaN")


class _FloatConditions:
    """Writes conditions as floats, each once."""

    def __init__(self, graph: GraphView, behind: set[str]) -> None:
        self.writer = GraphWriter(graph)
        self._graph, self._behind = graph, behind
        self._floats: dict[str, str] = {}
        self._numbers: dict[float, str] = {}

    def boolean(self, where: onnx.NodeProto) -> str:
        """The condition of a node, as a boolean that is made of floats."""
        condition = _before_repetition(self._graph, where)
        floats = floats_of(self._graph, condition) or self.floats(condition)
        made = self.writer.unique(f"{where.output[0]}: condition")
        self.writer.add("Cast", [floats], made, to=onnx.TensorProto.BOOL)
        return made

    def floats(self, name: str) -> str:
        """The floats of a condition: 1 where it is true, or else 0."""
        if name not in self._floats:
            self._floats[name] = self._computed(name) or self._not_zero(name) or self._cast(name)
        return self._floats[name]

    def _not_zero(self, name: str) -> str:
        """The floats for a condition that is a cast of any floats; empty for another one."""
        floats = floats_of(self._graph, name) if name in self._behind else ""
        if not floats:
            return ""
        zero = self.writer.unique(f"{name}: is zero")
        self.writer.add("Equal", [self.writer.current(floats), self._number(0)], zero)
        return self._add("Sub", [self._number(1), self._cast(zero)], name)

    def _computed(self, name: str) -> str:
        """The floats for a condition that kernels may make; empty for another one."""
        index = self._graph.producers.get(name)
        if index is None or name not in self._behind:
            return ""
        node = self._graph.nodes[index]
        if is_standard_op(node, "Not"):
            return self._add("Sub", [self._number(1), self.floats(node.input[0])], name)
        if is_standard_op(node, "And"):
            return self._add("Mul", map(self.floats, node.input), name)
        if is_standard_op(node, "Or"):
            return self._add("Max", map(self.floats, node.input), name)
        if is_standard_op(node, "Cast", "Identity") and self._graph.elem_type(node.input[0]) == onnx.TensorProto.BOOL:
            return self.floats(node.input[0])
        if is_standard_op(node, "Concat", *_MOVES):
            copy = self.writer.copied(node)
            moved = len(node.input) if node.op_type == "Concat" else 1
            copy.input[:moved] = [self.floats(operand) for operand in node.input[:moved]]
            copy.output[0] = self.writer.unique(f"{name}: floats")
            copy.name = f"{copy.output[0]}: {node.op_type}"
            self.writer.append(copy)
            return str(copy.output[0])
        return ""

    def _add(self, op: str, operands: Iterable[str], name: str) -> str:
        operands = list(operands)
        made = self.writer.unique(f"{name}: floats")
        self.writer.add(op, operands, made)
        return made

    def _number(self, number: float) -> str:
        if number not in self._numbers:
            self._numbers[number] = self.writer.constant(np.full(1, number, np.float32), f"{number:g}")
        return self._numbers[number]

    def _cast(self, name: str) -> str:
        made = self.writer.unique(f"{name}: floats")
        self.writer.add("Cast", [self.writer.current(name)], made, to=onnx.TensorProto.FLOAT)
        return made


def _before_repetition(graph: GraphView, where: onnx.NodeProto) -> str:
    """What a condition repeats to the sizes of the result, where one of the values has these; else the condition."""
    name, result = where.input[0], graph.dims(where.output[0])
    if result is None or result not in [graph.dims(value) for value in where.input[1:]]:
        return name
    while (index := graph.producers.get(name)) is not None and is_standard_op(graph.nodes[index], "Expand"):
        name = graph.nodes[index].input[0]
    return name
