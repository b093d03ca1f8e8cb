"""TopK of which only the first places are read, as TopK of that many.

Models that sort, and take the nearest few, export TopK of all positions of an axis and slices of what it makes: values,
and places in integers, which kernels do not slice.
"""

from __future__ import annotations

import numpy as np
import onnx

from sift_onnx.backends.lowering.dims import Dim, is_at_least
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.graph_writer import GraphWriter

__all__ = ["with_shorter_top_k"]

# The first version in which k and the bounds of Slice are inputs.
_OPSET = 10


def with_shorter_top_k(graph: GraphView) -> GraphView:
    """``graph``, or one that computes the same values, in which such nodes find fewer places."""
    if graph.opset < _OPSET:
        return graph
    found = {index: count for index, node in enumerate(graph.nodes) if (count := _places_read(graph, node))}
    if not found:
        return graph
    writer = GraphWriter(graph)
    slices = {reader for index in found for name in graph.nodes[index].output for reader in graph.readers.get(name, ())}
    for index, node in enumerate(graph.nodes):
        copy = writer.copied(node)
        if index in found:
            copy.input[1] = writer.constant(np.array([found[index]], np.int64), f"{node.output[0]}: places")
        elif index in slices:
            copy = onnx.helper.make_node("Identity", copy.input[:1], copy.output, copy.name)
        writer.write(index, copy)
    return writer.written()


def _places_read(graph: GraphView, node: onnx.NodeProto) -> int:
    """How many places of a sorting TopK are read, where it finds more; 0 if all are, or that is not known."""
    if not is_standard_op(node, "TopK") or any(a.name == "sorted" and not a.i for a in node.attribute):
        return 0
    dims, k = graph.dims(node.input[0]), graph.vector(node.input[1])
    if not dims or not k or any(name in graph.outputs for name in node.output):
        return 0
    axis = next((int(a.i) for a in node.attribute if a.name == "axis"), -1) % len(dims)
    readers = {index for name in node.output for index in graph.readers.get(name, ())}
    counts = {_first_places(graph, graph.nodes[index], axis, len(dims)) for index in readers}
    count = counts.pop() if len(counts) == 1 else 0
    return count if count and k[0] != count and is_at_least(k[0], count) else 0


def _first_places(graph: GraphView, node: onnx.NodeProto, axis: int, rank: int) -> int:
    """How many positions of ``axis`` a Slice takes, from the first one; 0 for another node."""
    if not is_standard_op(node, "Slice"):
        return 0
    given = [graph.vector(name) if name else None for name in node.input[1:]]
    defaults: list[tuple[Dim, ...] | None] = [(0,), (1,)]
    start, end, axes, step = [*given, *defaults[len(given) - 2 :]]
    if start != (0,) or not end or len(end) != 1 or not isinstance(end[0], int) or step != (1,):
        return 0
    is_along = axes is not None and len(axes) == 1 and isinstance(axes[0], int) and axes[0] % rank == axis
    return max(end[0], 0) if is_along else 0
