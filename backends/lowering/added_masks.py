"""The graph with masks of attention that are added to scores, where it puts a number in the place of scores.

Beside a number as low as exporters write for scores that do not count, every score is lost in rounding: adding it gives
the number itself. So the sum is the same, and the mask does not depend on the scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from sift_onnx.backends.lowering.contradictions import CONTRADICTIONS
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.graph_writer import GraphWriter
from sift_onnx.backends.lowering.matching.attention_scores import NoMatch, scores_before
from sift_onnx.backends.lowering.matching.cached_attention import find_cached_attentions

__all__ = ["with_added_masks"]


@dataclass(frozen=True)
class _Hidden:
    """A Where between a product and a softmax.

    Attributes:
        condition: name of a boolean, perhaps of smaller sizes than the one that the node reads.
        scores: name of what it selects from.
        hides: whether the number is where the boolean is true.
    """

    condition: str
    scores: str
    hides: bool


def with_added_masks(graph: GraphView) -> GraphView:
    """``graph``, or one that computes the same values, in which masks are added to scores of attention."""
    found = _hidden(graph)
    if not found:
        return graph
    writer = GraphWriter(graph)
    zero = writer.constant(np.zeros((), np.float32), "no mask")
    for index, node in enumerate(graph.nodes):
        copy = writer.copied(node)
        if index not in found:
            writer.write(index, copy)
            continue
        hidden, result = found[index], copy.output[0]
        mask = writer.unique(f"{result}: mask")
        copy.input[:] = (
            [hidden.condition, copy.input[1], zero] if hidden.hides else [hidden.condition, zero, copy.input[2]]
        )
        copy.output[0] = mask
        writer.append(copy)
        writer.write(index, onnx.helper.make_node("Add", [hidden.scores, mask], [result], name=f"{result}: Add"))
    return writer.written()


def _hidden(graph: GraphView) -> dict[int, _Hidden]:
    """The nodes to be replaced, by their index."""
    found = {}
    softmaxes: dict[int, list[int]] = {}
    for softmax, node in enumerate(graph.nodes):
        if not is_standard_op(node, "Softmax"):
            continue
        try:
            scores = scores_before(graph, softmax)
        except (NoMatch, *CONTRADICTIONS):
            continue
        own = [index for index in scores.between if is_standard_op(graph.nodes[index], "Where")]
        if own and not scores.softcap:
            softmaxes[softmax] = own
    if softmaxes:
        # Their kernel reads booleans.
        cached = {match.softmax for match in find_cached_attentions(graph)}
        for softmax, indices in softmaxes.items():
            for index in indices if softmax not in cached else ():
                found[index] = _hidden_by(graph, graph.nodes[index])
    return found


def _hidden_by(graph: GraphView, node: onnx.NodeProto) -> _Hidden:
    hides = graph.number(node.input[1]) is not None
    scores = node.input[2 if hides else 1]
    return _Hidden(_before_repetition(graph, node.input[0], scores), scores, hides)


def _before_repetition(graph: GraphView, name: str, scores: str) -> str:
    """What a boolean repeats to the sizes of ``scores``; ``name`` where it is none of them."""
    index = graph.producers.get(name)
    if index is None:
        return name
    node = graph.nodes[index]
    if is_standard_op(node, "Cast") and graph.elem_type(node.input[0]) == onnx.TensorProto.BOOL:
        return _before_repetition(graph, node.input[0], scores)
    if is_standard_op(node, "Expand") and graph.dims(name) is not None and graph.dims(name) == graph.dims(scores):
        return _before_repetition(graph, node.input[0], scores)
    return name
