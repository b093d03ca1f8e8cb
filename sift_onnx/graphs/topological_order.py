"""Nodes in topological order, which ONNX requires, and not all programs keep to."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

import onnx_graphsurgeon as gs

from sift_onnx.errors import ModelReadError
from sift_onnx.operators.labels import node_label

__all__ = ["index_in_cycle", "sort_nodes", "topological_order"]


def sort_nodes(graph: gs.Graph, leaves_cycles: bool = False) -> None:
    """Put producers before their consumers, in subgraphs too, and otherwise keep the order.

    Args:
        graph: whose list of nodes is replaced.
        leaves_cycles: whether a graph with a cycle stays as it is, for others to name what is wrong.

    Raises:
        ModelReadError: nodes form a cycle; the message names one of them.
    """
    for subgraph in [graph, *graph.subgraphs(recursive=True)]:
        _sort(subgraph, leaves_cycles)


def _sort(graph: gs.Graph, leaves_cycles: bool) -> None:
    made_by = {id(tensor): i for i, node in enumerate(graph.nodes) for tensor in node.outputs}
    needs = [{made_by[id(tensor)] for tensor in _read(node) if id(tensor) in made_by} for node in graph.nodes]
    if all(producer < i for i, needed in enumerate(needs) for producer in needed):
        return
    order = topological_order(needs)
    if len(order) < len(needs):
        if leaves_cycles:
            return
        node = graph.nodes[index_in_cycle(needs, order)]
        raise ModelReadError(f"node {node_label(node)} is part of a cycle: what it reads depends on it")
    graph.nodes = [graph.nodes[i] for i in order]


def topological_order(needs: Sequence[Collection[int]]) -> list[int]:
    """A stable topological order: each index comes after those that it needs; of those that can be next, the smallest.

    Indices that are in topological order already stay as they are. Takes O(n log n) by a heap.

    Args:
        needs: for each index, those that it needs, without duplicates.

    Returns:
        All indices; without those in a cycle, and those that need them, where there is one.
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


def index_in_cycle(needs: Sequence[Collection[int]], order: Sequence[int]) -> int:
    """An index that is part of a cycle, where :func:`topological_order` of ``needs`` lacks some."""
    done = set(order)
    at = next(i for i in range(len(needs)) if i not in done)
    seen: set[int] = set()
    while at not in seen:
        seen.add(at)
        at = min(i for i in needs[at] if i not in done)
    return at


def _read(node: gs.Node) -> Iterator[gs.Tensor]:
    """The inputs of a node, and the tensors that its subgraphs capture."""
    yield from node.inputs
    for value in node.attrs.values():
        if isinstance(value, gs.Graph):
            yield from value.outputs
            for inner in value.nodes:
                yield from _read(inner)
