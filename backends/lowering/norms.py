"""Layer and RMS normalization as exporters without the operators write them.

Layer normalization is ``d / sqrt(mean(d^2) + epsilon) * scale + shift`` with ``d = x - mean(x)``; RMS normalization has
x in place of d. Scale and shift may be left out, squares are powers or products, and quotients may be products by a
reciprocal. TensorFlow writes layer normalization as ``x * g + (shift - mean(x) * g)`` with ``g = scale / sqrt(...)``.
Cosine attention divides vectors by their length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op

__all__ = ["NormMatch", "find_norms"]

# One number for each channel, where there is such an operand.
_Vector = npt.NDArray[np.float32] | None


@dataclass(frozen=True)
class NormMatch:
    """One occurrence.

    Attributes:
        operand: name of x.
        scale: one number for each channel.
        shift: likewise.
        epsilon: what is added to the mean of squares.
        is_centered: whether the mean is taken off.
        least: what the mean of squares counts as at least.
        nodes: indices of its nodes, ascending; the last one makes the result.
    """

    operand: str
    scale: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]
    epsilon: float
    is_centered: bool
    nodes: tuple[int, ...]
    least: float = 0.0


def find_norms(graph: GraphView) -> list[NormMatch]:
    """All occurrences whose intermediate values no other node reads."""
    roots = [i for i, node in enumerate(graph.nodes) if is_standard_op(node, "Sqrt")]
    found = [_match(graph, root) or _match_affine(graph, root) for root in roots]
    found += [_match_unit(graph, i) for i, node in enumerate(graph.nodes) if is_standard_op(node, "ReduceL2")]
    return [norm for norm in found if norm is not None]


def _match(graph: GraphView, root: int) -> NormMatch | None:
    nodes = {root}
    squares = _mean_of_squares(graph, graph.nodes[root].input[0], nodes)
    if squares is None:
        return None
    difference, epsilon = squares
    operand = _centered(graph, difference, nodes)
    value = _divided(graph, root, difference, nodes)
    dims = graph.dims(operand or difference)
    if value is None or not dims or not isinstance(dims[-1], int):
        return None
    if operand is not None and not graph.is_only_read_by(difference, nodes):
        return None
    scale, value = _vector(graph, value, "Mul", dims, nodes)
    shift, value = _vector(graph, value, "Add", dims, nodes)
    if max(nodes) != graph.producers[value]:
        return None
    return _norm(operand or difference, dims[-1], scale, shift, epsilon, operand is not None, nodes)


def _norm(
    operand: str, channels: int, scale: _Vector, shift: _Vector, epsilon: float, is_centered: bool, nodes: set[int]
) -> NormMatch:
    ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    scale, shift = ones if scale is None else scale, zeros if shift is None else shift
    return NormMatch(operand, scale, shift, epsilon, is_centered, tuple(sorted(nodes)))


def _match_unit(graph: GraphView, reduced: int) -> NormMatch | None:
    """Vectors divided by their length, or by a number if that is larger: as many times smaller as RMS normalization."""
    operand = graph.nodes[reduced].input[0]
    dims = graph.dims(operand)
    if not dims or not isinstance(dims[-1], int) or not _is_over_channels(graph, reduced):
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


def _match_affine(graph: GraphView, root: int) -> NormMatch | None:
    """TensorFlow's form, with this root."""
    nodes = {root}
    squares = _mean_of_squares(graph, graph.nodes[root].input[0], nodes)
    subtracted = _maker(graph, squares[0], "Sub") if squares is not None else None
    gain = _reciprocal(graph, root, nodes)
    if squares is None or subtracted is None or gain is None:
        return None
    operand, mean = graph.nodes[subtracted].input
    reduced = _maker(graph, mean, "ReduceMean")
    dims = graph.dims(operand)
    if reduced is None or graph.nodes[reduced].input[0] != operand or not _is_over_channels(graph, reduced):
        return None
    if not dims or not isinstance(dims[-1], int):
        return None
    nodes |= {subtracted, reduced}
    scale, gain = _vector(graph, gain, "Mul", dims, nodes)
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
    return _norm(operand, dims[-1], scale, shift, squares[1], True, nodes)


def _reciprocal(graph: GraphView, root: int, nodes: set[int]) -> str | None:
    """One by the root."""
    reader = graph.only_reader(graph.nodes[root].output[0])
    if reader is None:
        return None
    node = graph.nodes[reader]
    if not (is_standard_op(node, "Reciprocal") or (is_standard_op(node, "Div") and graph.number(node.input[0]) == 1)):
        return None
    nodes.add(reader)
    return node.output[0]


def _factors(graph: GraphView, name: str) -> Iterator[tuple[int, str]]:
    """Readers of a value, and what they multiply it by; nothing for those that do something else."""
    for index in graph.readers.get(name, ()):
        others = [other for other in graph.nodes[index].input if other != name]
        is_product = is_standard_op(graph.nodes[index], "Mul") and len(others) == 1
        yield index, others[0] if is_product else ""


def _is_negative_of(graph: GraphView, name: str, other: str) -> bool:
    index = _maker(graph, name, "Neg")
    return index is not None and graph.nodes[index].input[0] == other


def _joined(
    graph: GraphView, moved: int, scaled: int, is_negative: bool, dims: Dims, nodes: set[int]
) -> tuple[_Vector, str] | None:
    """The shift in what is added to a product, or taken off it, and the result; the nodes join ``nodes``."""
    value, product = graph.nodes[moved].output[0], graph.nodes[scaled].output[0]
    shift: _Vector = None
    if is_negative:
        shift, value = _vector(graph, value, "Add", dims, nodes)
    else:
        reader = graph.only_reader(value)
        if reader is None or not is_standard_op(graph.nodes[reader], "Sub") or graph.nodes[reader].input[1] != value:
            return None
        if graph.nodes[reader].input[0] == product:
            nodes.add(reader)
            return None, graph.nodes[reader].output[0]
        shift, value = _vector(graph, value, "Sub", dims, nodes)
        if shift is None:
            return None
    reader = graph.only_reader(value)
    if reader is None or sorted(graph.nodes[reader].input) != sorted((product, value)):
        return None
    if not is_standard_op(graph.nodes[reader], "Add"):
        return None
    nodes.add(reader)
    return shift, graph.nodes[reader].output[0]


def _mean_of_squares(graph: GraphView, name: str, nodes: set[int]) -> tuple[str, float] | None:
    """What is squared in ``mean(square) + epsilon``, and epsilon; the nodes join ``nodes``."""
    added = _maker(graph, name, "Add")
    if added is None or graph.only_reader(name) is None:
        return None
    for mean, number in (graph.nodes[added].input, reversed(graph.nodes[added].input)):
        epsilon, reduced = graph.number(number), _maker(graph, mean, "ReduceMean")
        if epsilon is None or not epsilon > 0 or reduced is None or not _is_over_channels(graph, reduced):
            continue
        square = graph.nodes[reduced].input[0]
        power = _maker(graph, square, "Pow", "Mul")
        if power is None or graph.only_reader(mean) is None or graph.only_reader(square) is None:
            return None
        base, exponent = graph.nodes[power].input
        if base != exponent if graph.nodes[power].op_type == "Mul" else graph.number(exponent) != 2:
            return None
        nodes |= {added, reduced, power}
        return base, epsilon
    return None


def _centered(graph: GraphView, difference: str, nodes: set[int]) -> str | None:
    """x, of a difference x - mean(x); None for anything else."""
    subtracted = _maker(graph, difference, "Sub")
    if subtracted is None:
        return None
    operand, mean = graph.nodes[subtracted].input
    reduced = _maker(graph, mean, "ReduceMean")
    if reduced is None or graph.nodes[reduced].input[0] != operand or not _is_over_channels(graph, reduced):
        return None
    if graph.only_reader(mean) is None:
        return None
    nodes |= {subtracted, reduced}
    return operand


def _divided(graph: GraphView, root: int, difference: str, nodes: set[int]) -> str | None:
    """The difference divided by the root."""
    deviation = graph.nodes[root].output[0]
    reader = graph.only_reader(deviation)
    if reader is None:
        return None
    node = graph.nodes[reader]
    if is_standard_op(node, "Div") and list(node.input) == [difference, deviation]:
        nodes.add(reader)
        return node.output[0]
    inverse = _reciprocal(graph, root, nodes)
    product = graph.only_reader(inverse) if inverse is not None else None
    if inverse is None or product is None or not is_standard_op(graph.nodes[product], "Mul"):
        return None
    if sorted(graph.nodes[product].input) != sorted((difference, inverse)):
        return None
    nodes.add(product)
    return graph.nodes[product].output[0]


def _vector(graph: GraphView, value: str, op: str, dims: Dims, nodes: set[int]) -> tuple[_Vector, str]:
    """A number for each channel that a node combines ``value`` with, and its result; None and ``value`` without one."""
    reader = graph.only_reader(value)
    if reader is None or not is_standard_op(graph.nodes[reader], op):
        return None, value
    others = [name for name in graph.nodes[reader].input if name != value]
    vector = graph.values_of(others[0]) if len(others) == 1 else None
    if vector is None or vector.dtype != np.float32 or not np.isfinite(vector).all():
        return None, value
    if vector.shape[-1:] != dims[-1:] or vector.size != dims[-1] or vector.ndim > len(dims):
        return None, value
    nodes.add(reader)
    return np.array(vector.reshape(-1), np.float32), graph.nodes[reader].output[0]


def _is_over_channels(graph: GraphView, reduced: int) -> bool:
    """Whether a ReduceMean takes the mean over the last axis, which stays."""
    node = graph.nodes[reduced]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    dims = graph.dims(node.input[0])
    axes = attributes.get("axes")
    if len(node.input) > 1 and node.input[1]:
        axes = graph.vector(node.input[1])
    if dims is None or axes is None or attributes.get("keepdims", 1) != 1:
        return False
    return [axis % len(dims) if isinstance(axis, int) else None for axis in axes] == [len(dims) - 1]


def _maker(graph: GraphView, name: str, *ops: str) -> int | None:
    index = graph.producers.get(name)
    return index if index is not None and is_standard_op(graph.nodes[index], *ops) else None
