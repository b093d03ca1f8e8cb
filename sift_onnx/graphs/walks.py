"""Walks through a graph, from a tensor to where it comes from."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_graphsurgeon as gs

from sift_onnx.operators.domains import is_standard

__all__ = ["axis_order", "origin_of"]


def origin_of(tensor: gs.Tensor, through: Collection[str]) -> tuple[gs.Tensor, list[gs.Node]]:
    """Where a tensor comes from: back through the first inputs of nodes of some operators, as far as these go.

    Args:
        tensor: where the walk starts.
        through: standard operators that it passes.

    Returns:
        The first tensor that something else makes or that nothing does, and the nodes in between, producers first.
    """
    passed: list[gs.Node] = []
    while len(tensor.inputs) == 1:
        producer = tensor.inputs[0]
        if producer.op not in through or not is_standard(producer.domain) or not producer.inputs:
            break
        passed.append(producer)
        tensor = producer.inputs[0]
    return tensor, passed[::-1]


def axis_order(passed: Sequence[gs.Node], rank: int) -> tuple[int, ...]:
    """The axes of a tensor in the order that it has behind some nodes, of which only Transpose changes it.

    Args:
        passed: the nodes, producers first.
        rank: of the tensor.
    """
    order = tuple(range(rank))
    for node in passed:
        if node.op == "Transpose":
            permutation = node.attrs.get("perm")
            order = tuple(order[axis] for axis in permutation) if permutation is not None else order[::-1]
    return order
