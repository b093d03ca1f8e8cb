"""Writing a new graph node by node, with the inputs and outputs of an existing one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.graphs.constants import new_constant
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["GraphWriter"]


class GraphWriter:
    """Collects nodes in topological order, and constants; nothing gets a name that the old graph has."""

    def __init__(self, graph: GraphView) -> None:
        """Begin without any nodes."""
        self._graph = graph
        self._nodes: list[onnx.NodeProto] = []
        self._places: dict[int, int] = {}
        self._constants: dict[str, gs.Constant] = {}
        self._renamed: dict[str, str] = {}
        self._taken = {*graph.inputs, *graph.producers, *graph.constants}

    def written(self) -> GraphView:
        """The graph of what was written."""
        return self._graph.with_nodes(self._nodes, self._places, self._constants)

    def rename(self, name: str, other: str) -> None:
        """Have ``other`` stand for a value of the old graph."""
        self._renamed[name] = other

    def current(self, name: str) -> str:
        """The name of what stands for a value of the old graph: its own, if nothing else does."""
        return self._renamed.get(name, name)

    def unique(self, name: str) -> str:
        """``name``, or one like it, for a value that the old graph does not have."""
        own, number = name, 1
        while own in self._taken:
            number += 1
            own = f"{name} {number}"
        self._taken.add(own)
        return own

    def constant(self, values: npt.NDArray[Any] | SparseWeight, name: str) -> str:
        """Add a constant; its name, see :meth:`unique`."""
        name = self.unique(name)
        self._constants[name] = new_constant(name, values)
        return name

    def copied(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """A copy of an old node that reads what stands for its inputs."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [self.current(name) for name in node.input]
        return copy

    def write(self, index: int, node: onnx.NodeProto) -> None:
        """Add the node that is in the place of the old one with this index."""
        self.place_next((index,))
        self.append(node)

    def append(self, node: onnx.NodeProto) -> None:
        """Add a node that is in no other one's place."""
        self._nodes.append(node)

    @property
    def last(self) -> onnx.NodeProto:
        """The node that was added last."""
        return self._nodes[-1]

    @property
    def count(self) -> int:
        """Nodes that have been added: the index of the next one."""
        return len(self._nodes)

    def place_next(self, indices: Iterable[int]) -> None:
        """The next node to be added is in the place of the old ones with these indices."""
        self._places.update((index, len(self._nodes)) for index in indices)

    def place_with(self, index: int, other: int) -> None:
        """An old node is where another old one is, which has been written."""
        self._places[index] = self._places[other]

    def add(self, op: str, inputs: Iterable[str], output: str, name: str = "", **attributes: Any) -> None:
        """Add a standard operator that is in no other node's place; its name says what it makes, if none is given."""
        name = name or f"{output}: {op}"
        self.append(onnx.helper.make_node(op, [*inputs], [output], name=name, **attributes))
