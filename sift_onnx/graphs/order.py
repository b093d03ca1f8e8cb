"""Nodes in an order in which they can run. ONNX asks for one; graphsurgeon's graphs may be in any."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator

import onnx_graphsurgeon as gs

from sift_onnx.errors import ModelReadError

__all__ = ["sort_nodes"]


def sort_nodes(graph: gs.Graph) -> None:
    """Put producers before their readers, here and in subgraphs, and otherwise leave the order as it is.

    Raises:
        ModelReadError: nodes wait for each other; the message names one of them.
    """
    for subgraph in [graph, *graph.subgraphs(recursive=True)]:
        _sort(subgraph)


def _sort(graph: gs.Graph) -> None:
    made_by = {id(tensor): i for i, node in enumerate(graph.nodes) for tensor in node.outputs}
    waits: list[int] = []
    readers: dict[int, list[int]] = defaultdict(list)
    for i, node in enumerate(graph.nodes):
        needed = {made_by[id(tensor)] for tensor in _read(node) if id(tensor) in made_by}
        waits.append(len(needed))
        for producer in needed:
            readers[producer].append(i)
    # Of those that can run, the one that came first: what is sorted already stays as it is.
    ready = [i for i, count in enumerate(waits) if count == 0]
    order: list[gs.Node] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(graph.nodes[i])
        for reader in readers[i]:
            waits[reader] -= 1
            if waits[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(graph.nodes):
        node = graph.nodes[next(i for i, count in enumerate(waits) if count)]
        raise ModelReadError(f"node {node.name!r} ({node.op}) is part of a cycle: what it reads depends on it")
    graph.nodes = order


def _read(node: gs.Node) -> Iterator[gs.Tensor]:
    """What a node reads, its subgraphs' captured tensors included."""
    yield from node.inputs
    for value in node.attrs.values():
        if isinstance(value, gs.Graph):
            yield from value.outputs
            for inner in value.nodes:
                yield from _read(inner)
