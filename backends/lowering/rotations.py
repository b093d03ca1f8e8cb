"""Rotary position embedding as exporters spell it: ``x * cos + turned(x) * sin``.

What is turned is the second half of the channels, negative, and then the first half.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    return [rotation for rotation in found if rotation is not None]


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
    node = graph.nodes[graph.producers[name]]
    whole = node.input[0]
    dims, own = graph.dims(whole), graph.dims(name)
    if not dims or not own or not isinstance(dims[-1], int) or own[-1] != dims[-1] // 2 or dims[-1] % 2:
        return None
    last = len(dims) - 1
    if is_standard_op(node, "Split") and len(node.output) == 2:
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        return (whole, list(node.output).index(name)) if axis in (-1, last) else None
    if not is_standard_op(node, "Slice") or len(node.input) < 4:
        return None
    start, axes = graph.vector(node.input[1]), graph.vector(node.input[3])
    steps = graph.vector(node.input[4]) if len(node.input) > 4 and node.input[4] else (1,)
    if axes not in ((-1,), (last,)) or steps != (1,) or start not in ((0,), (dims[-1] // 2,)):
        return None
    # Half as many positions from there on.
    return whole, int(start != (0,))


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
