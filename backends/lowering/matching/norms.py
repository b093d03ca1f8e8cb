"""Layer and RMS normalization as exporters without the operators write them.

Layer normalization is ``d / sqrt(mean(d^2) + epsilon) * scale + shift`` with ``d = x - mean(x)``; RMS normalization has
x in place of d. Scale and shift may be left out, squares are powers or products, d may be computed twice, and quotients
may be products by a reciprocal. Means are over the last axis, or over the channels of images. TensorFlow has a form of
its own (``affine_norms``). Attention by angles divides vectors by their length.
"""

from __future__ import annotations

import numpy as np

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.matching.affine_norms import match_affine
from sift_onnx.backends.lowering.matching.norm_nodes import (
    MEANS,
    NormMatch,
    is_over_channels,
    maker,
    mean_of_squares,
    norm_of,
    reciprocal,
    vector_behind,
)

__all__ = ["NormMatch", "find_norms"]


def find_norms(graph: GraphView) -> list[NormMatch]:
    """All occurrences whose intermediate values no other node reads."""
    roots = [i for i, node in enumerate(graph.nodes) if is_standard_op(node, "Sqrt")]
    found = [_match(graph, root) or match_affine(graph, root) or _match(graph, root, of_pixels=True) for root in roots]
    found += [_match_unit(graph, i) for i, node in enumerate(graph.nodes) if is_standard_op(node, "ReduceL2")]
    return [norm for norm in found if norm is not None]


def _match(graph: GraphView, root: int, of_pixels: bool = False) -> NormMatch | None:
    nodes = {root}
    squares = mean_of_squares(graph, graph.nodes[root].input[0], nodes, of_pixels)
    if squares is None:
        return None
    difference, epsilon = squares
    operand = _centered(graph, difference, nodes, of_pixels)
    value = _divided(graph, root, difference, nodes)
    dims = graph.dims(operand or difference)
    channels = dims[1 if of_pixels else -1] if dims else None
    if value is None or not dims or not isinstance(channels, int):
        return None
    inside = [name for index in nodes for name in graph.nodes[index].output if name != value]
    if not all(graph.is_only_read_by(name, nodes) for name in inside):
        return None
    scale, value = vector_behind(graph, value, "Mul", dims, nodes, of_pixels)
    shift, value = vector_behind(graph, value, "Add", dims, nodes, of_pixels)
    if max(nodes) != graph.producers[value]:
        return None
    is_centered = operand is not None
    return norm_of(operand or difference, channels, scale, shift, epsilon, is_centered, nodes, of_pixels)


def _match_unit(graph: GraphView, reduced: int) -> NormMatch | None:
    """Vectors divided by their length, or by a number if that is larger: as many times smaller as RMS normalization."""
    operand = graph.nodes[reduced].input[0]
    dims = graph.dims(operand)
    if not dims or not isinstance(dims[-1], int) or not is_over_channels(graph, reduced):
        return None
    nodes, length, least = {reduced}, graph.nodes[reduced].output[0], 0.0
    while True:
        reader = graph.only_reader(length)
        if reader is None:
            return None
        node = graph.nodes[reader]
        nodes.add(reader)
        if is_standard_op(node, "Div") and list(node.input) == [operand, length]:
            break
        if is_standard_op(node, "Clip", "Max") and len(list(filter(None, node.input))) == 2:
            number = graph.number(next((name for name in node.input if name and name != length), ""))
            if number is None or not number >= least:
                return None
            least = number
        elif not is_standard_op(node, "Expand") or node.input[0] != length or graph.dims(node.output[0]) != dims:
            return None
        length = node.output[0]
    scale = np.full(dims[-1], dims[-1] ** -0.5, np.float32)
    shift = np.zeros(dims[-1], np.float32)
    return NormMatch(operand, scale, shift, 0.0, False, tuple(sorted(nodes)), least**2 / dims[-1])


def _centered(graph: GraphView, difference: str, nodes: set[int], of_pixels: bool) -> str | None:
    """x, of a difference x - mean(x); None for anything else."""
    subtracted = maker(graph, difference, "Sub")
    if subtracted is None:
        return None
    operand, mean = graph.nodes[subtracted].input
    reduced = maker(graph, mean, *MEANS)
    if reduced is None or graph.nodes[reduced].input[0] != operand or not is_over_channels(graph, reduced, of_pixels):
        return None
    nodes |= {subtracted, reduced}
    return operand


def _divided(graph: GraphView, root: int, difference: str, nodes: set[int]) -> str | None:
    """The difference, or one of the same values, divided by the root."""
    deviation = graph.nodes[root].output[0]
    reader = graph.only_reader(deviation)
    if reader is None:
        return None
    node = graph.nodes[reader]
    if is_standard_op(node, "Div") and node.input[1] == deviation:
        twin = _twin(graph, node.input[0], difference, nodes)
        nodes |= {reader, *twin}
        return node.output[0] if twin or node.input[0] == difference else None
    inverse = reciprocal(graph, root, nodes)
    product = graph.only_reader(inverse) if inverse is not None else None
    if inverse is None or product is None or not is_standard_op(graph.nodes[product], "Mul"):
        return None
    others = [name for name in graph.nodes[product].input if name != inverse]
    twin = _twin(graph, others[0], difference, nodes) if len(others) == 1 else set()
    nodes |= {product, *twin}
    return graph.nodes[product].output[0] if twin or others == [difference] else None


def _twin(graph: GraphView, name: str, difference: str, nodes: set[int]) -> set[int]:
    """The node that makes ``name``, if it subtracts what the node behind ``difference`` does, which is a part."""
    one, other = maker(graph, name, "Sub"), maker(graph, difference, "Sub")
    if one is None or other is None or one == other or other not in nodes:
        return set()
    return {one} if graph.nodes[one].input == graph.nodes[other].input else set()
