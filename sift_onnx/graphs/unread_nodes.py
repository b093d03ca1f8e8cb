"""Removal of nodes that nothing reads any more."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_graphsurgeon as gs

__all__ = ["drop_makers", "drop_unread"]


def drop_unread(graph: gs.Graph, ops: Collection[str]) -> None:
    """Remove the nodes of these operators that nothing reads, and those that only they read."""
    ends = {id(t) for t in graph.outputs}
    while unread := {id(node) for node in graph.nodes if node.op in ops and not _is_read(node, ends)}:
        for node in graph.nodes:
            if id(node) in unread:
                node.inputs.clear()
        graph.nodes = [node for node in graph.nodes if id(node) not in unread]


def drop_makers(graph: gs.Graph, tensors: Sequence[gs.Tensor]) -> None:
    """Remove the nodes of ``graph`` that made ``tensors`` and what they were made of, as far as nothing reads it."""
    ends = {id(t) for t in graph.outputs}
    own = {id(node) for node in graph.nodes}
    dropped: set[int] = set()
    pending = list(tensors)
    while pending:
        for node in list(pending.pop().inputs):
            if id(node) in own and not _is_read(node, ends):
                dropped.add(id(node))
                pending.extend(node.inputs)
                node.inputs.clear()
    graph.nodes = [node for node in graph.nodes if id(node) not in dropped]


def _is_read(node: gs.Node, ends: Collection[int]) -> bool:
    return any(t.outputs or id(t) in ends for t in node.outputs)
