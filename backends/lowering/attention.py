"""Multi-head attention as exporters write it: softmax(scale q k^T + mask) v, between splitting and merging the heads.

Only these nodes are looked for. How heads are split and merged is up to the operators around them, which move values:
queries, keys and values may come in any order of axes.
"""

from __future__ import annotations

from dataclasses import dataclass

from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.numbers import times_number
from sift_onnx.backends.lowering.specs import Attention

__all__ = ["AttentionMatch", "find_attentions"]


class _NoMatch(Exception):  # noqa: N818 - an answer, not an error
    """The graph is something else than what is looked for."""


@dataclass(frozen=True)
class AttentionMatch:
    """One occurrence.

    Attributes:
        spec: what it computes.
        operands: names of queries, keys and values; keys come as [..., depth, tokens].
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
    found = (_match(graph, i) for i, node in enumerate(graph.nodes) if is_standard_op(node, "Softmax"))
    return [attention for attention in found if attention is not None]


def _match(graph: GraphView, softmax: int) -> AttentionMatch | None:
    try:
        return _attention(graph, softmax)
    except (_NoMatch, ArithmeticError, LookupError, TypeError, ValueError):
        # But for the first, nodes that contradict themselves; onnxruntime says what is wrong with them.
        return None


def _attention(graph: GraphView, softmax: int) -> AttentionMatch:
    product, scale, mask, upper = _scores(graph, softmax)
    weighed, nan_to_zero, lower = _weights(graph, softmax)
    if len(graph.nodes[product].input) != 2 or len(graph.nodes[weighed].input) != 2:
        raise _NoMatch
    nodes = {softmax, product, weighed, *upper, *lower}
    queries, of_queries = _unscaled(graph, graph.nodes[product].input[0], nodes)
    keys, of_keys = _unscaled(graph, graph.nodes[product].input[1], nodes)
    values = graph.nodes[weighed].input[1]
    *batch, tokens, depth = graph.dims(queries) or ()
    *others, value_depth = graph.dims(values) or ()
    if len(batch) not in (1, 2) or graph.dims(keys) != (*batch, depth, tokens) or others != [*batch, tokens]:
        raise _NoMatch
    heads = batch[1] if len(batch) == 2 else 1
    if not isinstance(heads, int) or not isinstance(depth, int) or not isinstance(value_depth, int):
        raise _NoMatch
    if mask and not _fits(graph, mask, (*batch, tokens, tokens)):
        raise _NoMatch
    for index in nodes - {weighed}:
        if any(not graph.is_only_read_by(name, nodes) for name in graph.nodes[index].output):
            raise _NoMatch
    spec = Attention(heads, depth, value_depth, scale * of_queries * of_keys, nan_to_zero)
    return AttentionMatch(spec, (queries, keys, values), mask, softmax, tuple(sorted(nodes)))


def _unscaled(graph: GraphView, name: str, nodes: set[int]) -> tuple[str, float]:
    """What an operand is a number times of, and the number; the nodes between join ``nodes``."""
    scale = 1.0
    while (index := graph.producers.get(name)) is not None and graph.is_only_read_by(name, nodes):
        operand, factor = times_number(graph, index)
        if not operand or name in graph.constants:
            break
        nodes.add(index)
        name, scale = operand, scale * factor
    return name, scale


def _scores(graph: GraphView, softmax: int) -> tuple[int, float, str, list[int]]:
    """The product of queries and keys, what multiplies it, what is added to it, and the nodes between."""
    node = graph.nodes[softmax]
    dims = graph.dims(node.input[0])
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1 if graph.opset >= 13 else 1)
    if (
        dims is None
        or len(dims) not in (3, 4)
        or axis not in (-1, len(dims) - 1)
        or graph.elem_type(node.input[0]) != _FLOAT
    ):
        raise _NoMatch
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
            raise _NoMatch
        between.append(index)
        index = graph.producers.get(scores, -1)
    if index < 0:
        raise _NoMatch
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
            raise _NoMatch
        if graph.number(chosen.input[1]) != 0:
            raise _NoMatch
        between = [graph.producers[tested.output[0]], graph.producers[chosen.output[0]]]
        weights = chosen.output[0]
    index = graph.only_reader(weights)
    if index is None or graph.nodes[index].op_type != "MatMul" or graph.nodes[index].input[0] != weights:
        raise _NoMatch
    return index, nan_to_zero, between


def _fits(graph: GraphView, mask: str, scores: Dims) -> bool:
    """Whether the mask's axes are the scores', or 1; those that only a run knows are looked at then."""
    dims = graph.dims(mask)
    if dims is None or not 1 <= len(dims) <= len(scores) or graph.elem_type(mask) != _FLOAT:
        return False
    sizes = zip((*(1,) * (len(scores) - len(dims)), *dims), scores, strict=True)
    return all(size in (1, full) or not (isinstance(size, int) and isinstance(full, int)) for size, full in sizes)


_FLOAT = DType.FLOAT32.onnx_type
