"""The graph with its images in the order of convolutions."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx

from sift_onnx.backends.lowering.channel_order.axis_uses import AxisUses
from sift_onnx.backends.lowering.channel_order.groups import Turns, find_turns
from sift_onnx.backends.lowering.channel_order.orders import Kind, Order, first_order, inverse, turned
from sift_onnx.backends.lowering.graph import GraphView, names_read
from sift_onnx.backends.lowering.graph_writer import GraphWriter

__all__ = ["channels_first"]


def channels_first(graph: GraphView) -> GraphView:
    """``graph``, or one that computes the same bits, in which groups of values have their channels behind the batch.

    Where exporters turn images before and after each convolution, only the ends are turned. What lies between works on
    other axes: axes, pads, sizes and constants that are broadcast follow. Every group gains: it has fewer elements to
    transpose than before.
    """
    turns = find_turns(graph)
    return _Rewriter(graph, turns).rewritten() if turns.values else graph


class _Rewriter:
    """Rewrites the nodes in graph order."""

    def __init__(self, graph: GraphView, turns: Turns) -> None:
        self._graph, self._turns = graph, turns
        self._writer = GraphWriter(graph)
        self._made: dict[tuple[str, Kind, Order], str] = {}
        # What stands for a value in the new order; the writer knows what does in the old one.
        self._turned: dict[str, str] = {}
        self._fixed = {*graph.outputs, *_captured(graph)}

    def rewritten(self) -> GraphView:
        """The graph with all turns made."""
        for name in self._graph.inputs:
            if name in self._turns.values:
                self._turn(name)
        for index, node in enumerate(self._graph.nodes):
            if index in self._turns.entries and node.output[0] in self._turns.values:
                self._enter(index, node)
            elif index in self._turns.exits and node.input[0] in self._turns.values:
                self._leave(index, node)
            elif index in self._turns.uses:
                self._write_turned(index, node, self._turns.uses[index])
            else:
                self._writer.write(index, self._writer.copied(node))
            if index not in self._turns.uses and index not in self._turns.entries:
                for name in node.output:
                    if name in self._turns.values:
                        self._turn(name)
        return self._writer.written()

    def _enter(self, index: int, node: onnx.NodeProto) -> None:
        """A node whose operand is what its result becomes."""
        self._turned[node.output[0]] = self._writer.current(node.input[0])
        if node.output[0] in self._turns.kept:
            self._writer.write(index, self._writer.copied(node))

    def _leave(self, index: int, node: onnx.NodeProto) -> None:
        """A node whose result is what its operand became."""
        operand, result = self._turned[node.input[0]], node.output[0]
        if operand == result:
            return
        if result in self._fixed:
            self._writer.write(index, onnx.helper.make_node("Identity", [operand], [result], name=node.name))
        else:
            self._writer.rename(result, operand)

    def _write_turned(self, index: int, node: onnx.NodeProto, uses: AxisUses) -> None:
        order = first_order(uses.rank)
        made = [name for name in node.output if name in uses.values]
        for name in made:
            self._turned[name] = self._name_of(name)
        copy = self._writer.copied(node)
        for position, name in enumerate(node.input):
            if name in uses.values:
                copy.input[position] = self._turned[name]
            elif name and position in uses.inputs:
                copy.input[position] = self._turned_input(copy.input[position], uses.inputs[position], order)
        for position, name in enumerate(node.output):
            copy.output[position] = self._turned[name] if name in made else name
        for name, (kind, default) in uses.attributes.items():
            _turn_attribute(copy, name, kind, default, order)
        if uses.gives_sizes:
            sizes = copy.output[0]
            copy.output[0] = self._writer.unique(f"{sizes} (channels first)")
            self._writer.write(index, copy)
            places = self._writer.constant(np.array(inverse(order), np.int64), f"{sizes} (order of axes)")
            self._writer.add("Gather", [copy.output[0], places], sizes, axis=0)
        else:
            self._writer.write(index, copy)
        for name in made:
            if name in self._turns.kept:
                self._writer.add("Transpose", [self._turned[name]], name, perm=inverse(order))

    def _turned_input(self, name: str, kind: Kind, order: Order) -> str:
        """The name of what takes the place of an input that is no activation."""
        values = self._graph.known_values(name)
        if kind is Kind.OPERAND and values is not None and values.size == 1:
            return name
        made = self._made.get((name, kind, order))
        if made is None:
            if values is not None:
                made = self._writer.constant(turned(values, kind, order), f"{name} (channels first)")
            else:
                made = self._writer.unique(f"{name} (channels first)")
                places = self._writer.constant(np.array(order, np.int64), f"{name} (order of axes)")
                self._writer.add("Gather", [name, places], made, axis=0)
            self._made[name, kind, order] = made
        return made

    def _turn(self, name: str) -> None:
        """Turn what is made in its old order."""
        self._turned[name] = self._name_of(name)
        order = first_order(self._turns.values[name])
        self._writer.add("Transpose", [self._writer.current(name)], self._turned[name], perm=order)

    def _name_of(self, name: str) -> str:
        """A name for what a value becomes: that of an output which is this already, or a new one."""
        graph = self._graph
        for index in graph.readers.get(name, ()):
            result = graph.nodes[index].output[0] if index in self._turns.exits else ""
            if result in self._fixed and result not in self._turned.values():
                return result
        return self._writer.unique(f"{name} (channels first)")


def _turn_attribute(node: onnx.NodeProto, name: str, kind: Kind, default: int | None, order: Order) -> None:
    found = next((attribute for attribute in node.attribute if attribute.name == name), None)
    value = default if found is None else onnx.helper.get_attribute_value(found)
    if value is None:
        return
    new = turned(value, kind, order).tolist()
    if found is not None:
        node.attribute.remove(found)
    node.attribute.append(onnx.helper.make_attribute(name, new))


def _captured(graph: GraphView) -> Iterable[str]:
    """Values that subgraphs of nodes read."""
    for node in graph.nodes:
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            yield from names_read(node)
