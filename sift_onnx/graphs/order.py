"""Nodes in an order in which they can run. ONNX asks for one; graphsurgeon's graphs may be in any."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

import onnx_graphsurgeon as gs

from sift_onnx.errors import ModelReadError
from sift_onnx.operators.labels import node_label

__all__ = ["runnable_order", "sort_nodes", "waits_in_a_circle"]


def sort_nodes(graph: gs.Graph) -> None:
    """Put producers before their readers, here and in subgraphs, and otherwise leave the order as it is.

    Raises:
        ModelReadError: nodes wait for each other; the message names one of them.
    """
    for subgraph in [graph, *graph.subgraphs(recursive=True)]:
        _sort(subgraph)


def _sort(graph: gs.Graph) -> None:
    made_by = {id(tensor): i for i, node in enumerate(graph.nodes) for tensor in node.outputs}
    needs = [{made_by[id(tensor)] for tensor in _read(node) if id(tensor) in made_by} for node in graph.nodes]
    order = runnable_order(needs)
    if len(order) < len(needs):
        node = graph.nodes[waits_in_a_circle(needs, order)]
        raise ModelReadError(f"node {node_label(node)} is part of a cycle: what it reads depends on it")
    graph.nodes = [graph.nodes[i] for i in order]


def runnable_order(needs: Sequence[Collection[int]]) -> list[int]:
    """Numbers so that each comes after those that it needs; of those that can come next, the smallest does.

    What is in such an order already stays as it is. The time is that of a heap with every number in it once.

    Args:
        needs: for each number from 0 on, those that it needs, each once.

    Returns:
        All of them, or fewer where some need each other in a circle; those are left out, and what needs them.
    """
    waits = [len(needed) for needed in needs]
    readers: dict[int, list[int]] = defaultdict(list)
    for i, needed in enumerate(needs):
        for producer in needed:
            readers[producer].append(i)
    ready = [i for i, count in enumerate(waits) if count == 0]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for reader in readers[i]:
            waits[reader] -= 1
            if waits[reader] == 0:
                heapq.heappush(ready, reader)
    return order


def waits_in_a_circle(needs: Sequence[Collection[int]], order: Sequence[int]) -> int:
    """A number that needs itself through others, where :func:`runnable_order` of ``needs`` has left some out."""
    done = set(order)
    at = next(i for i in range(len(needs)) if i not in done)
    seen: set[int] = set()
    while at not in seen:
        seen.add(at)
        at = min(i for i in needs[at] if i not in done)
    return at


def _read(node: gs.Node) -> Iterator[gs.Tensor]:
    """What a node reads, its subgraphs' captured tensors included."""
    yield from node.inputs
    for value in node.attrs.values():
        if isinstance(value, gs.Graph):
            yield from value.outputs
            for inner in value.nodes:
                yield from _read(inner)
