"""Attention to a cache as exporters spell it: past and new keys are concatenated, repeated and multiplied.

The concatenations have an input of the model as their first operand, and are its outputs; a cache of a fixed length is
written by TensorScatter in their place. Keys that are an input themselves, as those of an encoder, are only read.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from sift_onnx.backends.lowering.contradictions import CONTRADICTIONS
from sift_onnx.backends.lowering.dims import Dims, product
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.matching.appended_cache import Appended, find_appended, repeats_heads
from sift_onnx.backends.lowering.matching.attention import is_inside, unscaled, weighed_behind
from sift_onnx.backends.lowering.matching.attention_scores import NoMatch, scores_before
from sift_onnx.backends.lowering.specs.decoding import NOTHING, CachedAttention, CacheNames, MaskPart

__all__ = ["CachedMatch", "find_cached_attentions"]


@dataclass(frozen=True)
class CachedMatch:
    """One occurrence.

    Attributes:
        spec: what it computes.
        operands: names of queries, and of keys and values of the new tokens, if there are any.
        cache: its cache and masks.
        softmax: index of its softmax.
        nodes: indices of all of its nodes, ascending; the last one makes the result.
    """

    spec: CachedAttention
    operands: tuple[str, ...]
    cache: CacheNames
    softmax: int
    nodes: tuple[int, ...]


def find_cached_attentions(graph: GraphView) -> list[CachedMatch]:
    """All occurrences whose intermediate values no other node reads."""
    matches = []
    for index, node in enumerate(graph.nodes):
        if is_standard_op(node, "Softmax", "Attention"):
            try:
                matches.append((_of_softmax if node.op_type == "Softmax" else _of_operator)(graph, index))
            except (NoMatch, *CONTRADICTIONS):
                continue
    return matches


def _of_softmax(graph: GraphView, softmax: int) -> CachedMatch:
    found = scores_before(graph, softmax)
    weighed, nan_to_zero, lower, of_weights = weighed_behind(graph, softmax, reshaped=found.is_reshaped)
    if found.head_scales or of_weights or found.rounded or found.masked:
        raise NoMatch
    scored = found.product
    nodes = {softmax, scored, weighed, *found.between, *lower}
    queries, of_queries = unscaled(graph, graph.nodes[scored].input[0], nodes)
    flat_heads = 0
    last = weighed
    if found.is_reshaped:
        queries, last, flat_heads = _parted(graph, queries, scored, weighed, found.parted, nodes)
    keys, of_keys = find_appended(graph, graph.nodes[scored].input[1])
    values, of_values = find_appended(graph, graph.nodes[weighed].input[1])
    if of_values != 1:
        raise NoMatch
    masks = (
        *(MaskPart(name, heads=flat_heads if len(dims) == 3 else 0) for name, dims in found.masks),
        *(MaskPart(*part) for part in found.hidden),
    )
    scale = found.scale * of_queries * of_keys
    match = _Found(
        queries, keys, values, masks, scale, softmax, nodes, is_turned=True, softcap=found.softcap,
        nan_to_zero=nan_to_zero, is_flat=flat_heads > 0,
    )  # fmt: skip
    return _checked(graph, match, last)


def _parted(
    graph: GraphView, queries: str, scored: int, weighed: int, scores: Dims, nodes: set[int]
) -> tuple[str, int, int]:
    """Where sequences and heads are one axis of the products: the queries before, and the node that parts the result.

    A reshape that leaves the last two axes parts or joins the others in their order.

    Args:
        graph: the model.
        queries: of the product.
        scored: index of the product of queries and keys.
        weighed: of the product of weights and values.
        scores: sizes towards the softmax, [sequences, heads, tokens, keys].
        nodes: of the attention; those of both reshapes are added.

    Returns:
        The queries, the index of the last node, and how many heads there are.
    """
    joined, parted = graph.producers.get(queries), graph.only_reader(graph.nodes[weighed].output[0], but_shape=True)
    if joined is None or parted is None or not graph.is_only_read_by(queries, nodes):
        raise NoMatch
    if not all(is_standard_op(graph.nodes[index], "Reshape") for index in (joined, parted)):
        raise NoMatch
    before, result = graph.dims(graph.nodes[joined].input[0]) or (), graph.dims(graph.nodes[parted].output[0]) or ()
    flat = [queries, graph.nodes[scored].output[0], graph.nodes[weighed].input[0], graph.nodes[weighed].output[0]]
    own, made, weights, values = (graph.dims(name) or () for name in flat)
    if [len(dims) for dims in (before, result, scores, own, made, weights, values)] != [4, 4, 4, 3, 3, 3, 3]:
        raise NoMatch
    heads, tokens = before[1:3]
    fits = scores[:3] == before[:3] and own == (product(before[:2]), *before[2:]) and made[:2] == own[:2]
    # Where the last two axes stay, the others are as many as before, whether they have a name or not.
    if not fits or weights[1] != tokens or result[1:] != (heads, tokens, values[2]) or not isinstance(heads, int):
        raise NoMatch
    nodes.update((joined, parted))
    # What the graph computes of these sizes follows then from those of its inputs.
    graph.learn(graph.nodes[weighed].output[0], (own[0], tokens, values[2]))
    return graph.nodes[joined].input[0], parted, heads


def _of_operator(graph: GraphView, index: int) -> CachedMatch:
    """Attention of opset 23 to keys and values that were concatenated before it, as torch exports it."""
    node = graph.nodes[index]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    inputs = [*node.input, *[""] * 7][:7]
    used = any(name and (graph.readers.get(name) or name in graph.outputs) for name in node.output[1:])
    if any(inputs[4:6]) or used or attributes.get("softmax_precision", 1) != 1:
        raise NoMatch
    if any(attributes.get(f"{side}_window_size", -1) >= 0 for side in ("left", "right")):
        raise NoMatch
    keys, of_keys = find_appended(graph, inputs[1])
    values, of_values = find_appended(graph, inputs[2])
    depth = (graph.dims(inputs[0]) or ("",))[-1]
    if of_values != 1 or not isinstance(depth, int):
        raise NoMatch
    scale = of_keys * (attributes.get("scale") or depth**-0.5)
    masks = (MaskPart(inputs[3], NOTHING),) if inputs[3] else ()
    is_causal, ends = bool(attributes.get("is_causal")), inputs[6]
    if (is_causal and not ends) or (ends and not keys.starts):
        # Without an end, the first query would be of the first key, whatever the cache has.
        raise NoMatch
    softcap = attributes.get("softcap", 0.0)
    match = _Found(
        inputs[0], keys, values, masks, scale, index, {index}, is_turned=False, softcap=softcap, is_causal=is_causal,
        ends=ends, is_operator=True, nan_to_zero=True,
    )  # fmt: skip
    return _checked(graph, match, index)


@dataclass(frozen=True)
class _Found:
    """What was found of an attention: operands, masks, scores, the node that it is named after, and all nodes."""

    queries: str
    keys: Appended
    values: Appended
    masks: tuple[MaskPart, ...]
    scale: float
    named: int
    nodes: set[int]
    is_turned: bool
    softcap: float = 0.0
    nan_to_zero: bool = False
    is_causal: bool = False
    ends: str = ""
    is_flat: bool = False
    is_operator: bool = False


def _checked(graph: GraphView, found: _Found, last: int) -> CachedMatch:
    """The match, whose result node ``last`` makes, if its sizes fit and no other node reads what is between."""
    keys, values, nodes = found.keys, found.values, found.nodes
    batch, heads, tokens, depth = graph.dims(found.queries) or ()
    _, key_heads, _, key_depth = keys.dims
    _, value_heads, _, value_depth = values.dims
    if not (isinstance(heads, int) and isinstance(key_heads, int) and isinstance(value_depth, int)):
        raise NoMatch
    if not isinstance(depth, int) or (key_heads, key_depth) != (value_heads, depth) or heads % key_heads:
        raise NoMatch
    if bool(keys.new) != bool(values.new) or keys.starts != values.starts:
        raise NoMatch
    for appended, is_turned in ((keys, found.is_turned), (values, False)):
        if not repeats_heads(graph, appended, heads, is_turned, found.is_flat, may_stay=found.is_operator):
            raise NoMatch
        new = graph.dims(appended.new) if appended.new else (batch, key_heads, tokens, appended.dims[3])
        if new is None or len(new) != 4 or new[1] != key_heads or new[2] != tokens or batch != new[0]:
            raise NoMatch
        nodes.update(appended.nodes)
    for index in nodes - {last}:
        for name in graph.nodes[index].output:
            if name not in (keys.present, values.present) and not is_inside(graph, name, nodes):
                raise NoMatch
    ranks = [len(graph.dims(part.name) or ()) for part in found.masks]
    if any(not 1 <= rank <= 4 for rank in ranks) or any(part.name in graph.constants for part in found.masks):
        raise NoMatch
    spec = CachedAttention(
        heads, key_heads, depth, value_depth, found.scale, appends=bool(keys.new), is_causal=found.is_causal,
        softcap=found.softcap, nan_to_zero=found.nan_to_zero,
    )  # fmt: skip
    cache = CacheNames(
        keys.past, values.past, keys.present, values.present, found.masks, starts=keys.starts, ends=found.ends
    )
    # After a mask of unknown sizes, the graph does not know how many tokens there are.
    graph.learn(graph.nodes[last].output[0], (batch, heads, tokens, value_depth))
    operands = (found.queries, keys.new, values.new) if keys.new else (found.queries,)
    return CachedMatch(spec, operands, cache, found.named, tuple(sorted(nodes)))
