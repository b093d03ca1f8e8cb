"""Adding nodes and initializers to a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.errors import UnsupportedError
from sift_onnx.graphs.constants import new_constant
from sift_onnx.graphs.names import free_name, names_in
from sift_onnx.operators.domains import opset_versions
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["NodeBuilder", "part_of"]

# Last components of parameter names, behind which nothing is to be inserted.
_ROLES = ("weight", "bias", "scale", "running_mean", "running_var", "kernel")

_OLDEST_OPSET = 7


def part_of(name: str, part: str) -> str:
    """The name of a part of a parameter: ``conv1.weight`` has the part ``conv1.branch0.weight``."""
    stem, dot, role = name.rpartition(".")
    return f"{stem}.{part}.{role}" if dot and role in _ROLES else f"{name}.{part}"


class NodeBuilder:
    """Makes nodes and initializers whose names are free; nodes are collected until they are placed."""

    def __init__(self, graph: gs.Graph) -> None:
        """For additions to ``graph``.

        Raises:
            UnsupportedError: its operators are those of a time before there was one way to broadcast.
        """
        self._taken = names_in(graph) | {node.name for node in graph.nodes}
        self.opset = opset_versions(graph.import_domains).get("", int(graph.opset))
        if self.opset < _OLDEST_OPSET:
            raise UnsupportedError(
                f"no nodes can be added to a model of opset {self.opset}; convert it to opset {_OLDEST_OPSET} or newer "
                "with onnx.version_converter"
            )
        self._pending: list[gs.Node] = []

    def constant(self, name: str, values: npt.NDArray[Any] | SparseWeight) -> gs.Constant:
        """A new initializer; ``name`` gets a suffix where it is taken."""
        free = free_name(name, self._taken)
        return new_constant(free, values if isinstance(values, SparseWeight) else np.asarray(values, order="C"))

    def node(
        self,
        op: str,
        inputs: Sequence[gs.Tensor],
        *,
        like: gs.Variable,
        name: str,
        attrs: Mapping[str, Any] | None = None,
        shape: Sequence[int | str | None] | None = None,
    ) -> gs.Variable:
        """A new node of the standard domain, and its output.

        Args:
            op: operator.
            inputs: what it reads.
            like: gives the element type of the output, and its shape unless ``shape`` does.
            name: of the node and its output; with a suffix where it is taken.
            attrs: attributes.
            shape: recorded shape of the output.
        """
        free = free_name(name, self._taken)
        output = gs.Variable(free, dtype=like.dtype, shape=like.shape if shape is None else list(shape))
        self._pending.append(gs.Node(op, free, dict(attrs or {}), list(inputs), [output]))
        return output

    def take_nodes(self) -> list[gs.Node]:
        """The nodes made since the last call, producers first."""
        nodes, self._pending = self._pending, []
        return nodes
