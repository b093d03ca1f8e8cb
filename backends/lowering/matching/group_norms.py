"""Group normalization as torch's exporter writes it: the groups of an image as channels of an InstanceNormalization.

Its scale and shift per channel are a product and a sum behind it, which ``fusion`` takes in.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.specs import GroupNormalization

__all__ = ["GroupNormMatch", "find_group_norms"]


@dataclass(frozen=True)
class GroupNormMatch:
    """One occurrence.

    Attributes:
        nodes: indices of its nodes, ascending; the last one makes the result.
        operand: what is normalized.
        spec: how, with scales of one and shifts of zero.
    """

    nodes: tuple[int, ...]
    operand: str
    spec: GroupNormalization


def find_group_norms(graph: GraphView, ranks: Collection[int] = (3, 4)) -> list[GroupNormMatch]:
    """All occurrences on values with one of these numbers of axes; no other node reads their intermediate values."""
    nodes = enumerate(graph.nodes)
    found = (_match(graph, index, ranks) for index, node in nodes if is_standard_op(node, "InstanceNormalization"))
    return [match for match in found if match is not None]


def _match(graph: GraphView, index: int, ranks: Collection[int]) -> GroupNormMatch | None:
    norm = graph.nodes[index]
    apart, together = graph.producers.get(norm.input[0]), graph.only_reader(norm.output[0])
    if apart is None or together is None or graph.only_reader(norm.input[0]) != index:
        return None
    first, last = graph.nodes[apart], graph.nodes[together]
    if not (is_standard_op(first, "Reshape") and is_standard_op(last, "Reshape") and last.input[0] == norm.output[0]):
        return None
    operand, grouped, result = (graph.dims(name) for name in (first.input[0], norm.input[0], last.output[0]))
    if operand is None or grouped is None or operand != result or len(operand) not in ranks or len(grouped) < 3:
        return None
    groups, channels = grouped[1], operand[1]
    if grouped[0] != operand[0] or not isinstance(groups, int) or not isinstance(channels, int) or channels % groups:
        return None
    scale, shift = (graph.values_of(name) for name in norm.input[1:3])
    if scale is None or shift is None or not (np.all(scale == 1) and np.all(shift == 0)):
        return None
    epsilon = next((a.f for a in norm.attribute if a.name == "epsilon"), 1e-5)
    one, zero = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    return GroupNormMatch((apart, index, together), first.input[0], GroupNormalization(one, zero, groups, epsilon))
