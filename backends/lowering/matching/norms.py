"""Layer and RMS normalization as exporters without the operators write them.

Layer normalization is ``d / sqrt(mean(d^2) + epsilon) * scale + shift`` with ``d = x - mean(x)``; RMS normalization has
x in place of d. Scale and shift may be left out, squares are powers or products, d may be computed twice, and quotients
may be products by a reciprocal. Flax takes ``mean(x^2) - mean(x)^2`` for the mean of d^2. Means are over the last axis,
or over the channels of images. TensorFlow has a form of its own (``affine_norms``). Attention by angles divides vectors
by their length.
"""

from __future__ import annotations

import numpy as np

from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.matching.affine_norms import match_affine
from sift_onnx.backends.lowering.matching.norm_nodes import (
    MEANS,
    NormMatch,
    Vector,
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
    found = [
        _match(graph, root) or match_affine(graph, root) or _match_moments(graph, root)
        or _match(graph, root, of_pixels=True) or _match_moments(graph, root, of_pixels=True)
        for root in roots
    ]  # fmt: skip
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
    return None if value is None else _ending(graph, operand, difference, (None, value), epsilon, nodes, of_pixels)


def _match_moments(graph: GraphView, root: int, of_pixels: bool = False) -> NormMatch | None:
    """Flax's form, with this root; its variance is cut off at zero, perhaps."""
    nodes = {root}
    variance = _added_to_number(graph, graph.nodes[root].input[0], nodes)
    if variance is None:
        return None
    name, epsilon = variance
    cut = maker(graph, name, "Max", "Relu")
    if cut is not None:
        numbers = [graph.number(other) for other in graph.nodes[cut].input]
        if graph.nodes[cut].op_type == "Max" and sorted(number for number in numbers if number is not None) != [0]:
            return None
        nodes.add(cut)
        name = next(other for other, number in zip(graph.nodes[cut].input, numbers, strict=True) if number is None)
    moments = maker(graph, name, "Sub")
    if moments is None:
        return None
    reduced, first = maker(graph, graph.nodes[moments].input[0], *MEANS), _squared(graph, graph.nodes[moments].input[1])
    if reduced is None or first is None or not is_over_channels(graph, reduced, of_pixels):
        return None
    second = _squared(graph, graph.nodes[reduced].input[0])
    average = maker(graph, first[0], *MEANS)
    if second is None or average is None or not is_over_channels(graph, average, of_pixels):
        return None
    if graph.nodes[average].input[0] != second[0]:
        return None
    nodes |= {moments, reduced, first[1], second[1], average}
    readers = graph.readers.get(first[0], ())
    centred = [
        index for index in readers
        if is_standard_op(graph.nodes[index], "Sub") and list(graph.nodes[index].input) == [second[0], first[0]]
    ]  # fmt: skip
    if len(centred) != 1:
        return None
    nodes.add(centred[0])
    difference = graph.nodes[centred[0]].output[0]
    dims = graph.dims(second[0])
    if not dims:
        return None
    value = _divided(graph, root, difference, nodes)
    ended = _times_gain(graph, root, difference, dims, nodes, of_pixels) if value is None else (None, value)
    return None if ended is None else _ending(graph, second[0], difference, ended, epsilon, nodes, of_pixels)


def _ending(
    graph: GraphView,
    operand: str | None,
    difference: str,
    scaled: tuple[Vector, str],
    epsilon: float,
    nodes: set[int],
    of_pixels: bool,
) -> NormMatch | None:
    """The match with the scale and the shift that come last.

    Args:
        graph: that it is in.
        operand: x; None where that is the difference.
        difference: what is divided.
        scaled: a scale that it has already, and the quotient.
        epsilon: that is added to the variance.
        nodes: so far.
        of_pixels: see :class:`NormMatch`.
    """
    scale, value = scaled
    dims = graph.dims(operand or difference)
    channels = dims[1 if of_pixels else -1] if dims else None
    if not dims or not isinstance(channels, int):
        return None
    inside = [name for index in nodes for name in graph.nodes[index].output if name != value]
    if not all(graph.is_only_read_by(name, nodes) for name in inside):
        return None
    if scale is None:
        scale, value = vector_behind(graph, value, "Mul", dims, nodes, of_pixels)
    shift, value = vector_behind(graph, value, "Add", dims, nodes, of_pixels)
    if max(nodes) != graph.producers[value]:
        return None
    is_centered = operand is not None
    return norm_of(operand or difference, channels, scale, shift, epsilon, is_centered, nodes, of_pixels)


def _added_to_number(graph: GraphView, name: str, nodes: set[int]) -> tuple[str, float] | None:
    """What a positive number is added to, and the number."""
    added = maker(graph, name, "Add")
    if added is None:
        return None
    for value, number in (graph.nodes[added].input, reversed(graph.nodes[added].input)):
        epsilon = graph.number(number)
        if epsilon is not None and epsilon > 0:
            nodes.add(added)
            return value, epsilon
    return None


def _squared(graph: GraphView, name: str) -> tuple[str, int] | None:
    """What a node squares, and its index."""
    index = maker(graph, name, "Mul", "Pow")
    if index is None:
        return None
    base, other = graph.nodes[index].input
    is_square = base == other if graph.nodes[index].op_type == "Mul" else graph.number(other) == 2
    return (base, index) if is_square else None


def _times_gain(
    graph: GraphView, root: int, difference: str, dims: Dims, nodes: set[int], of_pixels: bool
) -> tuple[Vector, str] | None:
    """The difference times ``scale / deviation``: the scale, and the product."""
    gain = reciprocal(graph, root, nodes)
    if gain is None:
        return None
    scale, gain = vector_behind(graph, gain, "Mul", dims, nodes, of_pixels)
    product = graph.only_reader(gain)
    if product is None or not is_standard_op(graph.nodes[product], "Mul"):
        return None
    if sorted(graph.nodes[product].input) != sorted((difference, gain)):
        return None
    nodes.add(product)
    return scale, graph.nodes[product].output[0]


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
        if not twin and node.input[0] != difference:
            return None
        nodes |= {reader, *twin}
        return node.output[0]
    inverse = reciprocal(graph, root, nodes)
    product = graph.only_reader(inverse) if inverse is not None else None
    if inverse is None or product is None or not is_standard_op(graph.nodes[product], "Mul"):
        return None
    others = [name for name in graph.nodes[product].input if name != inverse]
    twin = _twin(graph, others[0], difference, nodes) if len(others) == 1 else set()
    if not twin and others != [difference]:
        return None
    nodes |= {product, *twin}
    return graph.nodes[product].output[0]


def _twin(graph: GraphView, name: str, difference: str, nodes: set[int]) -> set[int]:
    """The node that makes ``name``, if it subtracts what the node behind ``difference`` does, which is a part."""
    one, other = maker(graph, name, "Sub"), maker(graph, difference, "Sub")
    if one is None or other is None or one == other or other not in nodes:
        return set()
    return {one} if graph.nodes[one].input == graph.nodes[other].input else set()
