"""Layer normalization as TensorFlow writes it: ``x * g + (shift - mean(x) * g)`` with ``g = scale / deviation``."""

from __future__ import annotations

from collections.abc import Iterator

from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
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

__all__ = ["match_affine"]


def match_affine(graph: GraphView, root: int) -> NormMatch | None:
    """TensorFlow's form, with this root."""
    nodes = {root}
    squares = mean_of_squares(graph, graph.nodes[root].input[0], nodes)
    subtracted = maker(graph, squares[0], "Sub") if squares is not None else None
    gain = reciprocal(graph, root, nodes)
    if squares is None or subtracted is None or gain is None:
        return None
    operand, mean = graph.nodes[subtracted].input
    reduced = maker(graph, mean, *MEANS)
    dims = graph.dims(operand)
    if reduced is None or graph.nodes[reduced].input[0] != operand or not is_over_channels(graph, reduced):
        return None
    if not dims or not isinstance(dims[-1], int):
        return None
    nodes |= {subtracted, reduced}
    scale, gain = vector_behind(graph, gain, "Mul", dims, nodes)
    products = {other: index for index, other in _factors(graph, gain)}
    negative = next((name for name in products if _is_negative_of(graph, name, mean)), "")
    moved = products.pop(negative or mean, None)
    scaled = products.pop(operand, None)
    if moved is None or scaled is None or products:
        return None
    nodes |= {moved, scaled}
    if negative:
        nodes.add(graph.producers[negative])
    ends = _joined(graph, moved, scaled, bool(negative), dims, nodes)
    if ends is None:
        return None
    shift, result = ends
    inside = [name for index in nodes for name in graph.nodes[index].output if name != result]
    if max(nodes) != graph.producers[result] or not all(graph.is_only_read_by(name, nodes) for name in inside):
        return None
    return norm_of(operand, dims[-1], scale, shift, squares[1], True, nodes)


def _factors(graph: GraphView, name: str) -> Iterator[tuple[int, str]]:
    """Readers of a value, and what they multiply it by; nothing for those that do something else."""
    for index in graph.readers.get(name, ()):
        others = [other for other in graph.nodes[index].input if other != name]
        is_product = is_standard_op(graph.nodes[index], "Mul") and len(others) == 1
        yield index, others[0] if is_product else ""


def _is_negative_of(graph: GraphView, name: str, other: str) -> bool:
    index = maker(graph, name, "Neg")
    return index is not None and graph.nodes[index].input[0] == other


def _joined(
    graph: GraphView, moved: int, scaled: int, is_negative: bool, dims: Dims, nodes: set[int]
) -> tuple[Vector, str] | None:
    """The shift in what is added to a product, or taken off it, and the result; the nodes join ``nodes``."""
    value, product = graph.nodes[moved].output[0], graph.nodes[scaled].output[0]
    shift: Vector = None
    if is_negative:
        shift, value = vector_behind(graph, value, "Add", dims, nodes)
    else:
        reader = graph.only_reader(value)
        if reader is None or not is_standard_op(graph.nodes[reader], "Sub") or graph.nodes[reader].input[1] != value:
            return None
        if graph.nodes[reader].input[0] == product:
            nodes.add(reader)
            return None, graph.nodes[reader].output[0]
        shift, value = vector_behind(graph, value, "Sub", dims, nodes)
        if shift is None:
            return None
    reader = graph.only_reader(value)
    if reader is None or sorted(graph.nodes[reader].input) != sorted((product, value)):
        return None
    if not is_standard_op(graph.nodes[reader], "Add"):
        return None
    nodes.add(reader)
    return shift, graph.nodes[reader].output[0]
