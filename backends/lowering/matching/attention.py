"""Multi-head attention as exporters write it: softmax(scale q k^T + mask) v, between splitting and merging the heads.

Only these nodes are looked for. How heads are split and merged is up to the operators around them, which move values:
queries, keys and values may come in any order of axes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sift_onnx.backends.lowering.contradictions import CONTRADICTIONS
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.matching.attention_masks import joined_mask
from sift_onnx.backends.lowering.matching.attention_scores import (
    BYTES,
    MOST_NODES,
    NoMatch,
    is_float_cast,
    rounding_of,
    scores_before,
)
from sift_onnx.backends.lowering.matching.numbers import times_number
from sift_onnx.backends.lowering.names import made_name
from sift_onnx.backends.lowering.specs import Attention, AttentionRoundings, Rounding

__all__ = ["AttentionMatch", "find_attentions", "is_inside", "unscaled", "weighed_behind"]


# Operators that sizes are computed with.
_SIZES = ("Shape", "Slice", "Gather", "Concat", "Unsqueeze", "Squeeze", "Cast", "Mul", "Div", "Sqrt", "Reshape")


@dataclass(frozen=True)
class AttentionMatch:
    """One occurrence.

    Attributes:
        spec: what it computes.
        operands: names of queries, keys and values; keys come as [..., depth, tokens].
        mask: name of what is added to the scores, which may be a constant; empty if nothing is.
        softmax: index of its softmax.
        nodes: indices of all of its nodes, ascending; the last one makes the result.
        is_crossed: whether keys are of other tokens than queries, as far as is known.
    """

    spec: Attention
    operands: tuple[str, str, str]
    mask: str
    softmax: int
    nodes: tuple[int, ...]
    is_crossed: bool = False


def find_attentions(graph: GraphView) -> list[AttentionMatch]:
    """All occurrences whose intermediate values no other node reads."""
    found = (_match(graph, i) for i, node in enumerate(graph.nodes) if is_standard_op(node, "Softmax"))
    return [attention for attention in found if attention is not None]


def _match(graph: GraphView, softmax: int) -> AttentionMatch | None:
    try:
        return _attention(graph, softmax)
    except (NoMatch, *CONTRADICTIONS):
        return None


def _attention(graph: GraphView, softmax: int) -> AttentionMatch:
    found = scores_before(graph, softmax)
    weighed, nan_to_zero, lower, of_weights = weighed_behind(graph, softmax)
    scored = found.product
    if found.hidden or found.softcap or len(graph.nodes[scored].input) != 2 or len(graph.nodes[weighed].input) != 2:
        raise NoMatch
    nodes = {softmax, scored, weighed, *found.between, *lower}
    queries, of_queries = unscaled(graph, graph.nodes[scored].input[0], nodes)
    keys, of_keys = unscaled(graph, graph.nodes[scored].input[1], nodes)
    values = graph.nodes[weighed].input[1]
    *batch, tokens, depth = graph.dims(queries) or ()
    *others, value_depth = graph.dims(values) or ()
    if len(batch) not in (1, 2) or others[:-1] != batch or graph.dims(keys) != (*batch, depth, *others[-1:]):
        raise NoMatch
    key_tokens = others[-1]
    if key_tokens != tokens and isinstance(key_tokens, tuple) and key_tokens[0] == "sum":
        # A cache and the new tokens: to move all of it at every run would cost more than it saves.
        raise NoMatch
    heads = batch[1] if len(batch) == 2 else 1
    if not isinstance(heads, int) or not isinstance(depth, int) or not isinstance(value_depth, int):
        raise NoMatch
    if found.is_reshaped and graph.dims(graph.nodes[scored].output[0]) != found.dims:
        raise NoMatch
    # After a mask of unknown sizes, the graph does not know those of the scores.
    found.dims = (*batch, tokens, key_tokens)
    for index in nodes - {weighed}:
        if any(not is_inside(graph, name, nodes) for name in graph.nodes[index].output):
            raise NoMatch
    joined = joined_mask(graph, found.masks, found.dims, made_name(graph.nodes[softmax].output[0], "mask"))
    if joined is None:
        raise NoMatch
    mask, repeats = joined
    scale = found.scale * of_queries * of_keys
    roundings = AttentionRoundings(tuple(found.rounded), tuple(found.masked), tuple(of_weights))
    spec = Attention(heads, depth, value_depth, scale, nan_to_zero, repeats, found.head_scales, roundings)
    return AttentionMatch(
        spec, (queries, keys, values), mask, softmax, tuple(sorted(nodes)), is_crossed=key_tokens != tokens
    )


def is_inside(graph: GraphView, name: str, nodes: set[int], most: int = MOST_NODES) -> bool:
    """Whether only ``nodes`` read a value, what computes sizes for them, and what reads its sizes, which are known."""
    if name in graph.outputs or not most:
        return False
    return all(
        index in nodes
        or index in graph.size_nodes
        or (
            is_standard_op(graph.nodes[index], *_SIZES)
            and all(is_inside(graph, made, nodes, most - 1) for made in graph.nodes[index].output)
        )
        for index in graph.readers.get(name, ())
    )


def unscaled(graph: GraphView, name: str, nodes: set[int]) -> tuple[str, float]:
    """What an operand is a number times of, and the number; the nodes between join ``nodes``."""
    scale = 1.0
    while (index := graph.producers.get(name)) is not None and graph.is_only_read_by(name, nodes):
        operand, factor = times_number(graph, index)
        if not operand or name in graph.constants:
            break
        nodes.add(index)
        name, scale = operand, scale * factor
    return name, scale


def weighed_behind(
    graph: GraphView, softmax: int, reshaped: bool = False
) -> tuple[int, bool, list[int], list[Rounding]]:
    """The product of weights and values, whether NaN became zero before it, the nodes between, and their roundings.

    Args:
        graph: the model.
        softmax: index of the softmax.
        reshaped: whether weights may get other axes between.
    """
    between: list[int] = []
    weights = _numbers_of(graph, graph.nodes[softmax].output[0], between)
    nan_to_zero = bool(between)
    index = graph.only_reader(weights)
    roundings: list[Rounding] = []
    while index is not None and (
        is_float_cast(graph, graph.nodes[index])
        or is_standard_op(graph.nodes[index], "QuantizeLinear", "DequantizeLinear")
        or (reshaped and is_standard_op(graph.nodes[index], "Reshape"))
    ):
        if is_standard_op(graph.nodes[index], "DequantizeLinear"):
            rounding = rounding_of(graph, index)[1]
            is_of_bytes = graph.elem_type(graph.nodes[index].input[0]) in BYTES and _is_of_bytes(graph, softmax)
            if not roundings and is_of_bytes and rounding.steps >= 1:
                # So does onnxruntime's QLinearSoftmax, of bytes from bytes.
                rounding = replace(rounding, steps=float(math.floor(rounding.steps)))
            roundings.append(rounding)
        between.append(index)
        # Bytes are never NaN.
        weights = _numbers_of(graph, graph.nodes[index].output[0], between)
        index = graph.only_reader(weights)
    if index is None or graph.nodes[index].op_type != "MatMul" or graph.nodes[index].input[0] != weights:
        raise NoMatch
    return index, nan_to_zero, between, roundings


def _numbers_of(graph: GraphView, weights: str, between: list[int]) -> str:
    """``weights``, or what has zeros in the place of NaN among them, whose nodes join ``between``."""
    readers = [graph.nodes[i] for i in graph.readers.get(weights, [])]
    if len(readers) != 2:
        return weights
    tested = next((node for node in readers if node.op_type == "IsNaN"), None)
    chosen = next((node for node in readers if node.op_type == "Where"), None)
    if tested is None or chosen is None or list(chosen.input)[::2] != [tested.output[0], weights]:
        raise NoMatch
    if graph.number(chosen.input[1]) != 0:
        raise NoMatch
    between += [graph.producers[tested.output[0]], graph.producers[chosen.output[0]]]
    return chosen.output[0]


def _is_of_bytes(graph: GraphView, softmax: int) -> bool:
    """Whether the operand is dequantized bytes."""
    maker = graph.producers.get(graph.nodes[softmax].input[0])
    if maker is None or not is_standard_op(graph.nodes[maker], "DequantizeLinear"):
        return False
    return graph.elem_type(graph.nodes[maker].input[0]) in BYTES
