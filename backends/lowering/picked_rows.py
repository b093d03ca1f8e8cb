"""One position of each sequence, picked by pairs of places, as GatherElements.

torch's newer exporter writes ``x[arange(n), places]`` as GatherND at pairs, of which the first are 0 to n - 1: the last
token of each text, or its end. Kernels take places along one axis, [n], from outside.
"""

from __future__ import annotations

import onnx

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.node_rewriter import FoundNodeRewriter

__all__ = ["with_picked_rows"]

# The first version in which axes of Unsqueeze are an input.
_OPSET = 13


def with_picked_rows(graph: GraphView) -> GraphView:
    """``graph``, or one that computes the same values, in which such nodes are GatherElements."""
    if graph.opset < _OPSET or not any(is_standard_op(node, "GatherND") for node in graph.nodes):
        return graph
    return _Rewriter.rewritten(graph, _places_of)


def _places_of(graph: GraphView, node: onnx.NodeProto) -> str:
    """The places [n] along the second axis that a node takes of each position of the first; empty for another node."""
    if not is_standard_op(node, "GatherND") or any(a.i for a in node.attribute if a.name == "batch_dims"):
        return ""
    data = graph.dims(node.input[0])
    if data is None or len(data) < 2 or graph.elem_type(node.input[0]) != onnx.TensorProto.FLOAT:
        return ""
    joined = _producer(graph, node.input[1], "Concat")
    if joined is None or len(joined.input) != 2 or not any(a.i in (-1, 1) for a in joined.attribute):
        return ""
    columns = [_column(graph, name) for name in joined.input]
    counted = _producer(graph, columns[0], "Range") if all(columns) else None
    if counted is None or any(graph.dims(name) != (data[0],) for name in columns):
        return ""
    start, _, step = map(graph.vector, counted.input)
    is_each = start == (0,) and step == (1,) and all(isinstance(size, int) for size in data[2:])
    return columns[1] if is_each and graph.elem_type(columns[1]) == onnx.TensorProto.INT64 else ""


def _column(graph: GraphView, name: str) -> str:
    """The vector that a column [n, 1] is of; empty for anything else."""
    node = _producer(graph, name, "Unsqueeze")
    if node is None or len(node.input) < 2 or graph.vector(node.input[1]) not in ((1,), (-1,)):
        return ""
    dims = graph.dims(node.input[0])
    return node.input[0] if dims is not None and len(dims) == 1 else ""


def _producer(graph: GraphView, name: str, op: str) -> onnx.NodeProto | None:
    index = graph.producers.get(name)
    return graph.nodes[index] if index is not None and is_standard_op(graph.nodes[index], op) else None


class _Rewriter(FoundNodeRewriter[str]):
    """Writes one GatherND."""

    def write(self, places: str) -> None:
        """Take a position of each sequence at ``places``."""
        data = self._input(0)
        dims = self.graph.dims(data)
        assert dims is not None  # it was asked
        behind = list(range(1, len(dims)))
        whole = self._made("Unsqueeze", [places, self._constant(behind, "axes of places")], "places")
        if len(dims) > 2:
            target = self._constant([1, 1, *dims[2:]], "features")
            whole = self._made("Expand", [whole, target], "places of features")
        taken = self._made("GatherElements", [data, whole], "taken", axis=1)
        self._place_next()
        self._add("Squeeze", [taken, self._constant([1], "axis")], self._output(0))
