"""Multi-head attention as exporters write it: softmax(scale q k^T + mask) v, between splitting and merging the heads.

Heads are split by Reshape and Transpose, in many orders. Where one layer computes queries, keys and values, Split,
Slice or Gather separate them. The operands of both products are traced back to the outputs of layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sift_onnx.backends.lowering.dims import Dim, Dims, divided
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.graph import GraphView, names_read
from sift_onnx.backends.lowering.specs import Attention
from sift_onnx.backends.lowering.strided_views import (
    Axis,
    Factor,
    NoMatch,
    StridedView,
    axis_size,
    regrouped,
    times_number,
    transposed,
    view_of,
    whole,
)

__all__ = ["AttentionMatch", "find_attentions"]


@dataclass(frozen=True)
class AttentionMatch:
    """One occurrence.

    Attributes:
        spec: what it computes.
        operands: names of queries, keys and values.
        mask: name of what is added to the scores, which may be a constant; empty if nothing is.
        softmax: index of its softmax.
        nodes: indices of all of its nodes, ascending; the last one makes the result.
    """

    spec: Attention
    operands: tuple[str, str, str]
    mask: str
    softmax: int
    nodes: tuple[int, ...]


def find_attentions(graph: GraphView) -> list[AttentionMatch]:
    """All occurrences whose intermediate values no other node reads."""
    found = (_match(graph, i) for i, node in enumerate(graph.nodes) if node.op_type == "Softmax")
    return [attention for attention in found if attention is not None]


def _match(graph: GraphView, softmax: int) -> AttentionMatch | None:
    try:
        return _attention(graph, softmax)
    except (NoMatch, ArithmeticError, LookupError, TypeError, ValueError):
        # But for the first, nodes that contradict themselves; onnxruntime says what is wrong with them.
        return None


def _attention(graph: GraphView, softmax: int) -> AttentionMatch:
    product_of_keys, scale, mask, upper = _scores(graph, softmax)
    weighed, nan_to_zero, lower = _weights(graph, softmax)
    if len(graph.nodes[product_of_keys].input) != 2 or len(graph.nodes[weighed].input) != 2:
        raise NoMatch
    queries = view_of(graph, graph.nodes[product_of_keys].input[0])
    keys = view_of(graph, graph.nodes[product_of_keys].input[1])
    values = view_of(graph, graph.nodes[weighed].input[1])
    if any(len(view.axes) != 4 for view in (queries, keys, values)) or values.scale != 1:
        raise NoMatch
    keys_as_queries = replace(keys, axes=(*keys.axes[:2], keys.axes[3], keys.axes[2]))
    heads, depth, tokens = _heads(queries)
    if _heads(keys_as_queries) != (heads, depth, tokens) or keys_as_queries.dims[:-1] != queries.dims[:-1]:
        raise NoMatch
    value_heads, value_depth, value_tokens = _heads(values)
    if (value_heads, value_tokens) != (heads, tokens) or values.dims[:-1] != queries.dims[:-1]:
        raise NoMatch
    rows = [axis_size(axis) for axis in (queries.axes[0], queries.axes[2])]
    if mask and not _fits(graph, mask, (rows[0], heads, rows[1], rows[1])):
        raise NoMatch
    joins_rows, joining = _joined(graph, weighed, (rows[0], heads, rows[1], value_depth), queries.dims)
    core = {softmax, product_of_keys, weighed, *upper, *lower, *joining}
    core |= queries.nodes | keys.nodes | values.nodes
    operands = (queries.source, keys.source, values.source)
    # Nodes on the way of one operand may produce another.
    if any(graph.producers.get(name) in core for name in (*operands, mask)):
        raise NoMatch
    nodes = _closed(graph, core, joining[-1], {*operands, mask})
    spec = Attention(
        heads,
        depth,
        value_depth,
        (queries.offset, keys.offset, values.offset),
        tokens,
        scale * queries.scale * keys.scale,
        nan_to_zero,
        joins_rows,
    )
    return AttentionMatch(spec, operands, mask, softmax, nodes)


def _scores(graph: GraphView, softmax: int) -> tuple[int, float, str, list[int]]:
    """The product of queries and keys, what multiplies it, what is added to it, and the nodes between."""
    node = graph.nodes[softmax]
    dims = graph.dims(node.input[0])
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1 if graph.opset >= 13 else 1)
    if dims is None or len(dims) != 4 or axis not in (-1, 3) or graph.elem_type(node.input[0]) != _FLOAT:
        raise NoMatch
    scale, mask, between = 1.0, "", []
    index = graph.producers.get(node.input[0], -1)
    while index >= 0 and graph.nodes[index].op_type != "MatMul":
        node = graph.nodes[index]
        if node.op_type == "Add" and not mask and scale == 1:
            scores = next((n for n in node.input if _leads_to_product(graph, n)), "")
            mask = next((n for n in node.input if n != scores), "")
        else:
            scores, factor = times_number(graph, index)
            scale *= factor
        if not scores:
            raise NoMatch
        between.append(index)
        index = graph.producers.get(scores, -1)
    if index < 0:
        raise NoMatch
    return index, scale, mask, between


def _leads_to_product(graph: GraphView, name: str) -> bool:
    """Whether ``name`` is a matrix product, or one times a number."""
    index = graph.producers.get(name)
    while index is not None and graph.nodes[index].op_type in ("Mul", "Div"):
        operand, _ = times_number(graph, index)
        index = graph.producers.get(operand) if operand else None
    return index is not None and graph.nodes[index].op_type == "MatMul"


def _weights(graph: GraphView, softmax: int) -> tuple[int, bool, list[int]]:
    """The product of weights and values, whether NaN became zero before it, and the nodes between."""
    weights = graph.nodes[softmax].output[0]
    readers = [graph.nodes[i] for i in graph.readers.get(weights, [])]
    between: list[int] = []
    nan_to_zero = len(readers) == 2
    if nan_to_zero:
        tested = next((node for node in readers if node.op_type == "IsNaN"), None)
        chosen = next((node for node in readers if node.op_type == "Where"), None)
        if tested is None or chosen is None or list(chosen.input)[::2] != [tested.output[0], weights]:
            raise NoMatch
        if graph.number(chosen.input[1]) != 0:
            raise NoMatch
        between = [graph.producers[tested.output[0]], graph.producers[chosen.output[0]]]
        weights = chosen.output[0]
    index = graph.only_reader(weights)
    if index is None or graph.nodes[index].op_type != "MatMul" or graph.nodes[index].input[0] != weights:
        raise NoMatch
    return index, nan_to_zero, between


def _heads(view: StridedView) -> tuple[int, int, int | None]:
    """Heads, depth and tokens of a view [sequences, heads, tokens, depth]; None: the source's last axis but one."""
    last = len(view.dims) - 1
    sequences, heads, tokens, depth = view.axes
    if not isinstance(depth_size := axis_size(depth), int) or not isinstance(head_count := axis_size(heads), int):
        raise NoMatch
    if depth != ((Factor(last, depth_size, 1),) if depth_size > 1 else ()):
        raise NoMatch
    if heads != ((Factor(last, head_count, depth_size),) if head_count > 1 else ()):
        raise NoMatch
    # Each row is a token, and those of a sequence are consecutive.
    if last == 0 or not _in_order([*sequences, *tokens], view.dims[:-1]):
        raise NoMatch
    count = axis_size(tokens)
    if isinstance(count, int):
        return head_count, depth_size, count
    if tokens == (Factor(last - 1, view.dims[last - 1], 1),):
        return head_count, depth_size, None
    raise NoMatch


def _in_order(factors: list[Factor], dims: Dims) -> bool:
    """Whether the factors in sequence are the axes of sizes ``dims``."""
    expected: Iterator[tuple[int, Dim]] = ((i, size) for i, size in enumerate(dims) if size != 1)
    axis, left = next(expected, (-1, 1))
    for factor in factors:
        rest = divided(left, factor.size)
        if factor.axis != axis or rest != factor.stride:
            return False
        left = rest
        if left == 1:
            axis, left = next(expected, (-1, 1))
    return left == 1


def _fits(graph: GraphView, mask: str, scores: Dims) -> bool:
    """Whether the mask's axes are the scores', or 1; those that only a run knows are looked at then."""
    dims = graph.dims(mask)
    if dims is None or not 1 <= len(dims) <= 4 or graph.elem_type(mask) != _FLOAT:
        return False
    sizes = zip((*(1,) * (4 - len(dims)), *dims), scores, strict=True)
    return all(size in (1, full) or not (isinstance(size, int) and isinstance(full, int)) for size, full in sizes)


def _joined(graph: GraphView, weighed: int, sizes: Dims, operand: Dims) -> tuple[bool, list[int]]:
    """Whether the result's rows are one axis, and the nodes that join the heads."""
    axes = whole(sizes)
    sequences, heads, tokens, depth = axes
    name = graph.nodes[weighed].output[0]
    # After a mask of unknown sizes, the graph does not know those of the result.
    known = dict(zip(graph.dims(name) or (), sizes, strict=False))
    nodes: list[int] = []
    while len(axes) == 4:
        index = graph.only_reader(name, but_shape=True)
        if index is None:
            raise NoMatch
        node = graph.nodes[index]
        after: tuple[Axis, ...] | None = None
        if node.op_type == "Transpose":
            after = transposed(node, axes)
        elif node.op_type == "Reshape" and node.input[0] == name:
            after = regrouped(graph, index, axes, known)
        if after is None:
            raise NoMatch
        axes, name = after, node.output[0]
        nodes.append(index)
    if not axes or axes[-1] != (*heads, *depth) or sum(axes[:-1], ()) != (*sequences, *tokens):
        raise NoMatch
    if len(axes) == 2:
        return True, nodes
    if tuple(axis_size(axis) for axis in axes[:-1]) != operand[:-1]:
        raise NoMatch
    return False, nodes


def _closed(graph: GraphView, core: set[int], result: int, operands: set[str]) -> tuple[int, ...]:
    """The core, and what computes sizes for its reshapes alone; NoMatch if other nodes read a value inside."""
    nodes = set(core)
    waiting = list(core)
    while waiting:
        for name in names_read(graph.nodes[waiting.pop()]):
            index = graph.producers.get(name)
            if index is None or index in nodes or name in operands or name in graph.constants:
                continue
            outputs = [n for n in graph.nodes[index].output if n]
            if any(n in operands or n in graph.outputs for n in outputs):
                continue
            if graph.nodes[index].op_type in _SIZES and all(set(graph.readers.get(n, ())) <= nodes for n in outputs):
                nodes.add(index)
                waiting.append(index)
    for index in nodes - {result}:
        for name in graph.nodes[index].output:
            if name in graph.outputs or not set(graph.readers.get(name, ())) <= nodes:
                raise NoMatch
    return tuple(sorted(nodes))


# Operators that sizes are computed with.
_SIZES = frozenset({"Shape", "Slice", "Gather", "Concat", "Unsqueeze", "Squeeze", "Cast", "Mul", "Div", "Sqrt"})
_FLOAT = DType.FLOAT32.onnx_type
