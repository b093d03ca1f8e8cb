"""The graph with one mask of attention where several are added to scores, one directly behind the other.

Encoders with relative positions add a bias of positions and a mask of tokens in every layer (MPNet). Their sum is the
same in all layers, and is computed once; only the order of two additions changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from sift_onnx.backends.lowering.contradictions import CONTRADICTIONS
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.graph_writer import GraphWriter
from sift_onnx.backends.lowering.matching.attention_scores import NoMatch, scores_before
from sift_onnx.backends.lowering.matching.cached_attention import find_cached_attentions

__all__ = ["with_joined_masks"]


@dataclass(frozen=True)
class _Addition:
    """Two masks that are added to scores.

    Attributes:
        first: index of the first addition, which the second follows.
        scores: name of what it adds to.
        masks: names of both masks, in this order.
    """

    first: int
    scores: str
    masks: tuple[str, str]


def with_joined_masks(graph: GraphView) -> GraphView:
    """``graph``, or one that computes the same values but for rounding, in which scores have one mask each."""
    found = _additions(graph)
    if not found:
        return graph
    writer = GraphWriter(graph)
    firsts = {addition.first for addition in found.values()}
    joined: dict[tuple[str, str], str] = {}
    for index, node in enumerate(graph.nodes):
        if index in firsts:
            continue
        copy = writer.copied(node)
        if index not in found:
            writer.write(index, copy)
            continue
        addition = found[index]
        masks = addition.masks
        if masks not in joined:
            joined[masks] = writer.unique(f"{copy.output[0]}: masks")
            own = [writer.current(mask) for mask in masks]
            writer.append(onnx.helper.make_node("Add", own, [joined[masks]], name=joined[masks]))
        copy.input[:] = [writer.current(addition.scores), joined[masks]]
        writer.place_next((addition.first, index))
        writer.append(copy)
    return writer.written()


def _additions(graph: GraphView) -> dict[int, _Addition]:
    """Of each second addition, by its index."""
    found: dict[int, _Addition] = {}
    softmaxes = {}
    for softmax, node in enumerate(graph.nodes):
        if is_standard_op(node, "Softmax") and (own := _additions_before(graph, softmax)) is not None:
            softmaxes[softmax] = own
    # Their kernel takes several masks.
    cached = {match.softmax for match in find_cached_attentions(graph)} if softmaxes else set()
    for softmax, (second, addition) in softmaxes.items():
        if softmax not in cached:
            found[second] = addition
    return found


def _additions_before(graph: GraphView, softmax: int) -> tuple[int, _Addition] | None:
    try:
        scores = scores_before(graph, softmax)
    except (NoMatch, *CONTRADICTIONS):
        return None
    adding = [index for index in scores.between if is_standard_op(graph.nodes[index], "Add")]
    if len(adding) != 2 or len(scores.masks) != 2 or scores.rounded or scores.masked:
        return None
    second, first = adding
    (last, _), (mask, _) = scores.masks
    between = graph.nodes[first].output[0]
    if between not in graph.nodes[second].input or graph.only_reader(between) != second or between in graph.outputs:
        return None
    # The sum of constants is one already.
    if graph.fold(mask) and graph.fold(last):
        return None
    if graph.dims(mask) is None or graph.dims(last) is None:
        return None
    before = next((name for name in graph.nodes[first].input if name != mask), "")
    return (second, _Addition(first, before, (mask, last))) if before else None
