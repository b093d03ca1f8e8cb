"""Rotary position embedding as exporters spell it: ``x * cos + turned(x) * sin``.

What is turned is the second half of the channels, negative, and then the first half. Where x is the first channels of
each head, the others follow behind the sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.specs.decoding import Rotated

__all__ = ["RotationMatch", "find_rotations"]


@dataclass(frozen=True)
class RotationMatch:
    """One occurrence.

    Attributes:
        spec: what it computes.
        operands: names of x, of cosines and of sines.
        nodes: indices of its nodes, ascending; the last one makes the result.
    """

    spec: Rotated
    operands: tuple[str, str, str]
    nodes: tuple[int, ...]


def find_rotations(graph: GraphView) -> list[RotationMatch]:
    """All occurrences whose intermediate values no other node reads."""
    found = (_match(graph, index) for index, node in enumerate(graph.nodes) if is_standard_op(node, "Add"))
    return [_with_rest(graph, rotation) for rotation in found if rotation is not None]


def _with_rest(graph: GraphView, found: RotationMatch) -> RotationMatch:
    """The match with the channels that stay, if those that are turned are the first ones of a head."""
    turned = graph.nodes[found.nodes[-1]].output[0]
    index = graph.only_reader(turned)
    node = graph.nodes[index] if index is not None else None
    if index is None or node is None or not is_standard_op(node, "Concat") or len(node.input) != 2:
        return found
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    x, rest = found.operands[0], node.input[1]
    first, second = _channels(graph, x), _channels(graph, rest)
    if node.input[0] != turned or axis not in (-1, 3) or first is None or second is None or first[0] != second[0]:
        return found
    dims = graph.dims(first[0])
    depth = dims[-1] if dims else None
    if first[1] != 0 or second[1] != first[2] or second[2] != depth or not isinstance(depth, int):
        return found
    nodes = {*found.nodes, index, graph.producers[x], graph.producers[rest]}
    if not all(graph.is_only_read_by(name, nodes) for name in (x, rest)):
        return found
    spec = replace(found.spec, depth=depth)
    return RotationMatch(spec, (first[0], *found.operands[1:]), tuple(sorted(nodes)))


def _channels(graph: GraphView, name: str) -> tuple[str, int, int] | None:
    """What a value is a range of along the last axis, where the range begins, and where it ends."""
    index = graph.producers.get(name)
    node = graph.nodes[index] if index is not None else None
    dims, own = graph.dims(node.input[0]) if node is not None else None, graph.dims(name)
    if node is None or not dims or not own or not isinstance(dims[-1], int) or not isinstance(own[-1], int):
        return None
    last = len(dims) - 1
    if is_standard_op(node, "Split"):
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        sizes = [(graph.dims(part) or (None,))[-1] for part in node.output]
        before = sizes[: list(node.output).index(name)]
        if axis not in (-1, last) or not all(isinstance(size, int) for size in before):
            return None
        start = sum(size for size in before if isinstance(size, int))
    elif is_standard_op(node, "Slice") and len(node.input) > 3:
        starts, axes = graph.vector(node.input[1]), graph.vector(node.input[3])
        steps = graph.vector(node.input[4]) if len(node.input) > 4 and node.input[4] else (1,)
        if axes not in ((-1,), (last,)) or steps != (1,) or not starts or not isinstance(starts[0], int):
            return None
        start = starts[0] + (dims[-1] if starts[0] < 0 else 0)
    else:
        return None
    return node.input[0], start, start + own[-1]


def _match(graph: GraphView, index: int) -> RotationMatch | None:
    products = [_product(graph, name) for name in graph.nodes[index].input]
    if len(products) != 2 or None in products:
        return None
    for straight, other in (products, products[::-1]):
        assert straight is not None and other is not None
        for turned, sines in (other[1:], other[:0:-1]):
            halves = _halves(graph, turned)
            if halves is None:
                continue
            x, nodes = halves
            cosines = next((name for name in straight[1:] if name != x), "")
            if x not in straight[1:] or not cosines:
                continue
            spec = _spec(graph, x, cosines, sines)
            every = (index, int(straight[0]), int(other[0]), *nodes)
            inside = set(every)
            made = (name for i in every[1:] for name in graph.nodes[i].output)
            if spec is not None and all(graph.is_only_read_by(name, inside) for name in made):
                return RotationMatch(spec, (x, cosines, sines), tuple(sorted(every)))
    return None


def _product(graph: GraphView, name: str) -> tuple[int, str, str] | None:
    index = graph.producers.get(name)
    if index is None or not is_standard_op(graph.nodes[index], "Mul"):
        return None
    first, second = graph.nodes[index].input
    return index, first, second


def _halves(graph: GraphView, name: str) -> tuple[str, tuple[int, ...]] | None:
    """What a value is the halves of, exchanged, of which the first one is negative now; and the nodes."""
    joined = graph.producers.get(name)
    if joined is None or not is_standard_op(graph.nodes[joined], "Concat") or len(graph.nodes[joined].input) != 2:
        return None
    negative, first = graph.nodes[joined].input
    turned = graph.producers.get(negative)
    dims = graph.dims(name)
    axis = next((a.i for a in graph.nodes[joined].attribute if a.name == "axis"), 0)
    if turned is None or not is_standard_op(graph.nodes[turned], "Neg") or not dims or axis not in (-1, len(dims) - 1):
        return None
    second = graph.nodes[turned].input[0]
    makers = [graph.producers.get(part) for part in (first, second)]
    if None in makers:
        return None
    nodes = tuple(dict.fromkeys((joined, turned, *(maker for maker in makers if maker is not None))))
    parts = [_half(graph, part) for part in (first, second)]
    if None in parts or parts[0] is None or parts[1] is None or parts[0][0] != parts[1][0]:
        return None
    return (parts[0][0], nodes) if (parts[0][1], parts[1][1]) == (0, 1) else None


def _half(graph: GraphView, name: str) -> tuple[str, int] | None:
    """What a value is a half of along the last axis, and which one."""
    found = _channels(graph, name)
    depth = (graph.dims(found[0]) or (None,))[-1] if found is not None else None
    if found is None or not isinstance(depth, int) or depth % 2:
        return None
    whole, *ends = found
    which = [[0, depth // 2], [depth // 2, depth]]
    return (whole, which.index(ends)) if ends in which else None


def _spec(graph: GraphView, x: str, cosines: str, sines: str) -> Rotated | None:
    dims, angles, others = graph.dims(x), graph.dims(cosines), graph.dims(sines)
    if dims is None or len(dims) != 4 or angles is None or angles != others or len(angles) != 4:
        return None
    depth = dims[-1]
    if not isinstance(depth, int) or angles[-1] != depth or cosines in graph.constants or sines in graph.constants:
        return None
    for axis in (1, 2):
        heads, tokens = dims[axis], dims[3 - axis]
        if isinstance(heads, int) and angles[axis] == 1 and angles[3 - axis] == tokens and angles[0] in (1, dims[0]):
            return Rotated(heads, depth, depth, has_angle_each=True, heads_axis=axis)
    return None
