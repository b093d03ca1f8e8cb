"""Open sizes that meet in an operator: aligned axes of its operands, or what a Reshape has before and after it.

What meets is equal in most runs, and need not be: where operands are broadcast, one of the two may be 1. So this says
which names are worth taking for one, or for a number, and never that they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest

import onnx

from sift_onnx.backends.lowering.dim_terms import sum_of
from sift_onnx.backends.lowering.dims import Dim, Dims, added, bound, names_in, product, solved
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.operators.domains import is_standard
from sift_onnx.operators.einsum_terms import einsum_terms
from sift_onnx.operators.traits import ELEMENTWISE_BINARY

__all__ = ["equated", "names_that_meet", "numbers_that_meet"]

Pairs = Iterator[tuple[Dim, Dim]]


def names_that_meet(graph: GraphView) -> list[tuple[str, str]]:
    """Pairs of names that would make two sizes equal which meet, if they were one."""
    found: dict[tuple[str, str], None] = {}
    for node in graph.nodes:
        for first, second in _meeting(graph, node):
            names = equated(first, second)
            if names is not None:
                found[names] = None
    return list(found)


def numbers_that_meet(graph: GraphView) -> dict[str, int]:
    """For names, the only number of two or more that would make axes equal which meet, if they were that number."""
    found: dict[str, set[int]] = {}
    for node in graph.nodes:
        if node.op_type == "Reshape" or any(graph.vector(name) is not None for name in node.output):
            continue  # numbers of positions, and no axes of two operands
        for pair in _meeting(graph, node):
            size, number = sorted(pair, key=lambda own: isinstance(own, int))
            if isinstance(number, int) and not isinstance(size, int):
                symbols, more = sum_of(size)
                name, value = solved(added(symbols), number - more) or ("", 0)
                found.setdefault(name, set()).add(value)
    return {name: value for name, (value, *others) in found.items() if value > 1 and not others}


def equated(first: Dim, second: Dim) -> tuple[str, str] | None:
    """The names that make two different sizes equal if they are one: of ``first`` and ``second``; None without such."""
    # A table that is cut to a length meets what is of that length.
    first, second = _end_of_cut(first), _end_of_cut(second)
    own, other = names_in(first), names_in(second)
    if len(own - other) != 1 or len(other - own) != 1:
        return None
    (name,), (theirs,) = own - other, other - own
    return (name, theirs) if bound(second, {theirs: name}) == first else None


def _end_of_cut(size: Dim) -> Dim:
    return size[2] if isinstance(size, tuple) and size[0] == "cut" else size


def _meeting(graph: GraphView, node: onnx.NodeProto) -> Pairs:
    if not is_standard(node.domain):
        return
    if node.op_type in ELEMENTWISE_BINARY:
        yield from _aligned([graph.dims(name) for name in node.input])
        if node.op_type == "Div":
            # How many times one batch is repeated to be another.
            yield from _elements(graph, node)
        return
    rule = _RULES.get(node.op_type)
    if rule is not None and len(node.input) > 1:
        yield from rule(graph, node)


def _aligned(operands: Sequence[Dims | None]) -> Pairs:
    """Of operands that are broadcast against each other."""
    known = [dims[::-1] for dims in operands if dims is not None]
    for sizes in zip_longest(*known, fillvalue=1):
        yield from _with_first([size for size in sizes if size != 1])


def _with_first(sizes: Sequence[Dim]) -> Pairs:
    yield from ((sizes[0], size) for size in sizes[1:] if size != sizes[0])


def _elements(graph: GraphView, node: onnx.NodeProto) -> Pairs:
    first, second = map(graph.vector, node.input)
    if first is not None and second is not None and len(first) == len(second):
        yield from ((a, b) for a, b in zip(first, second, strict=True) if a != b)


def _joined(graph: GraphView, node: onnx.NodeProto) -> Pairs:
    operands = [dims for dims in map(graph.dims, node.input) if dims is not None]
    ranks = {len(dims) for dims in operands}
    if len(ranks) != 1 or 0 in ranks:
        return
    along = _attribute(node, "axis", 0) % ranks.pop()
    for axis, sizes in enumerate(zip(*operands, strict=True)):
        if axis != along:
            yield from _with_first(sizes)


def _multiplied(graph: GraphView, node: onnx.NodeProto) -> Pairs:
    first, second = (graph.dims(name) for name in node.input[:2])
    if not first or not second:
        return
    yield from _with_first([first[-1], second[-2] if len(second) > 1 else second[0]])
    yield from _aligned([first[:-2], second[:-2]])


def _multiplied_and_added(graph: GraphView, node: onnx.NodeProto) -> Pairs:
    first, second = (graph.dims(name) for name in node.input[:2])
    if first is None or second is None or len(first) != 2 or len(second) != 2:
        return
    rows, inner = first[::-1] if _attribute(node, "transA", 0) else first
    other, columns = second[::-1] if _attribute(node, "transB", 0) else second
    yield from _with_first([inner, other])
    if len(node.input) > 2 and node.input[2]:
        yield from _aligned([(rows, columns), graph.dims(node.input[2])])


def _expanded(graph: GraphView, node: onnx.NodeProto) -> Pairs:
    yield from _aligned([graph.dims(node.input[0]), graph.vector(node.input[1])])


def _reshaped(graph: GraphView, node: onnx.NodeProto) -> Pairs:
    before, target = graph.dims(node.input[0]), graph.vector(node.input[1])
    if before is None or target is None or (0 in target and len(target) > len(before)):
        return
    copies = not _attribute(node, "allowzero", 0)
    sizes = [before[axis] if size == 0 and copies else size for axis, size in enumerate(target)]
    if -1 not in sizes:
        yield product(before), product(sizes)
    # Axes in front stay in front, split or merged.
    end = sizes.index(-1) if -1 in sizes else len(sizes)
    fronts = [product(before[:count]) for count in range(1, len(before) + 1)]
    yield from ((own, product(sizes[:count])) for own in fronts for count in range(1, end + 1))


def _contracted(graph: GraphView, node: onnx.NodeProto) -> Pairs:
    operands = [dims for dims in map(graph.dims, node.input) if dims is not None]
    equation = next((a.s.decode() for a in node.attribute if a.name == "equation"), "")
    terms, _ = einsum_terms(equation, [*map(len, operands)])
    if len(operands) < len(node.input) or terms is None or [*map(len, terms)] != [*map(len, operands)]:
        return
    sizes: dict[str, list[Dim]] = {}
    for term, dims in zip(terms, operands, strict=True):
        for label, size in zip(term, dims, strict=True):
            sizes.setdefault(label, []).append(size)
    for met in sizes.values():
        yield from _with_first([size for size in met if size != 1])


def _attended(graph: GraphView, node: onnx.NodeProto) -> Pairs:
    operands = [graph.dims(name) for name in node.input[:3]]
    known = [dims for dims in operands if dims]
    yield from _with_first([dims[0] for dims in known])
    if len(known) == 3:
        yield from _with_first([dims[-2] for dims in known[1:]])


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


_RULES: Mapping[str, Callable[[GraphView, onnx.NodeProto], Pairs]] = {
    "Attention": _attended,
    "Concat": _joined,
    "Einsum": _contracted,
    "Expand": _expanded,
    "Gemm": _multiplied_and_added,
    "MatMul": _multiplied,
    "Reshape": _reshaped,
}
