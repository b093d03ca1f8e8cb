"""Writing standard operators in the place of one node of a graph, which a subclass knows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import numpy as np
import onnx

from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.graph_writer import GraphWriter

__all__ = ["FoundNodeRewriter", "NodeRewriter"]

_Found = TypeVar("_Found")


class NodeRewriter:
    """What rewriters of nodes have in common: the node's operands, and nodes and constants for what it computes."""

    def __init__(self, graph: GraphView, writer: GraphWriter) -> None:
        """Begin with no node; :meth:`at` says which one is next."""
        self.graph = graph
        self._writer = writer
        self._index, self._node = -1, onnx.NodeProto()

    def at(self, index: int, node: onnx.NodeProto) -> None:
        """Go on with this node."""
        self._index, self._node = index, node

    def _place_next(self) -> None:
        """The next node to be added is in the place of the old one."""
        self._writer.place_next((self._index,))

    def _input(self, position: int) -> str:
        return self._node.input[position] if position < len(self._node.input) else ""

    def _output(self, position: int) -> str:
        return self._node.output[position] if position < len(self._node.output) else ""

    def _attribute(self, name: str, default: Any) -> Any:
        found = (onnx.helper.get_attribute_value(a) for a in self._node.attribute if a.name == name)
        return next(found, default)

    def _is_read(self, position: int) -> bool:
        name = self._output(position)
        return bool(name) and (bool(self.graph.readers.get(name)) or name in self.graph.outputs)

    def _made(self, op: str, inputs: Iterable[str], what: str, **attributes: Any) -> str:
        """Add a node for a value between those of the old graph; its name."""
        made = self._writer.unique(f"{self._node.output[0]}: {what}")
        self._add(op, inputs, made, **attributes)
        return made

    def _add(self, op: str, inputs: Iterable[str], output: str, **attributes: Any) -> None:
        self._writer.add(op, map(self._writer.current, inputs), output, **attributes)

    def _constant(self, values: Any, what: str, dtype: type[np.generic] = np.int64) -> str:
        return self._writer.constant(np.array(values, dtype), f"{self._node.output[0]}: {what}")


class FoundNodeRewriter(NodeRewriter, ABC, Generic[_Found]):
    """Rewrites the nodes about which something was found in the whole graph before the first of them is written."""

    @abstractmethod
    def write(self, found: _Found) -> None:
        """Add the nodes that replace the current one; ``found`` is what was found about it."""

    @classmethod
    def rewritten(cls, graph: GraphView, find: Callable[[GraphView, onnx.NodeProto], _Found | None]) -> GraphView:
        """``graph``, or a copy in which the nodes are rewritten for which ``find`` gives something true."""
        found = {index: what for index, node in enumerate(graph.nodes) if (what := find(graph, node))}
        if not found:
            return graph
        writer = GraphWriter(graph)
        rewriter = cls(graph, writer)
        for index, node in enumerate(graph.nodes):
            if index in found:
                rewriter.at(index, node)
                rewriter.write(found[index])
            else:
                writer.write(index, writer.copied(node))
        return writer.written()
