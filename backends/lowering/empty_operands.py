"""The graph without operands of Concat that have no elements, and without a Concat of one operand.

transformers rotates a part of each head and joins it with the rest, which it writes where the part is all of it, too.
An export without earlier tokens joins their keys, which are none, with the new ones.
"""

from __future__ import annotations

from collections import defaultdict

import onnx

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.graph_writer import GraphWriter

__all__ = ["without_empty_operands"]


def without_empty_operands(graph: GraphView) -> GraphView:
    """``graph``, or one that computes the same values, in which nothing empty is joined, nor cut off for that."""
    kept = {index: names for index, node in enumerate(graph.nodes) if (names := _kept(graph, node))}
    if not kept:
        return graph
    cut = _read_for_nothing(graph, kept)
    placed: dict[int, list[int]] = defaultdict(list)
    for index, reader in cut.items():
        placed[reader].append(index)
    writer = GraphWriter(graph)
    for index, node in enumerate(graph.nodes):
        if index in cut:
            continue
        copy = writer.copied(node)
        if index in kept:
            copy.input[:] = kept[index]
            if len(kept[index]) == 1:
                copy.op_type = "Identity"
                del copy.attribute[:]
        writer.write(index, copy)
        for other in placed[index]:
            writer.place_with(other, index)
    return writer.written()


def _kept(graph: GraphView, node: onnx.NodeProto) -> list[str]:
    """The operands of a Concat that are not empty, where some are, or there is one; else none."""
    if not is_standard_op(node, "Concat"):
        return []
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    names = [name for name in node.input if not _is_empty(graph, name, axis)]
    return names if len(names) < len(node.input) or len(names) == 1 else []


def _is_empty(graph: GraphView, name: str, axis: int) -> bool:
    dims = graph.dims(name)
    return dims is not None and -len(dims) <= axis < len(dims) and dims[axis] == 0


def _read_for_nothing(graph: GraphView, kept: dict[int, list[str]]) -> dict[int, int]:
    """Each Slice that only makes an empty operand, with the last node that it was made for."""
    found = {}
    for index, node in enumerate(graph.nodes):
        readers = graph.readers.get(node.output[0], []) if is_standard_op(node, "Slice") else []
        is_left_out = all(reader in kept and node.output[0] not in kept[reader] for reader in readers)
        if readers and is_left_out and node.output[0] not in graph.outputs:
            found[index] = max(readers)
    return found
