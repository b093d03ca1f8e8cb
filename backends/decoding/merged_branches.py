"""Merged decoders: an ``If`` that runs one graph for the prompt and another one for all tokens after it.

optimum writes them. The branch with a cache takes an empty one too, so it alone makes a decoder.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from sift_onnx.operators.domains import is_standard

__all__ = ["CONDITION", "with_cache_branch"]

# The input that chooses.
CONDITION = "use_cache_branch"


def with_cache_branch(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model with the branch for a cache in the place of each such ``If``, without the input that chooses.

    Args:
        model: with all its data.

    Returns:
        None for a model that is not merged.
    """
    if not any(info.name == CONDITION for info in model.graph.input):
        return None
    merged = [node for node in model.graph.node if _is_choice(node)]
    if not merged:
        return None
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    nodes = [part for node in graph.node for part in (_branch(graph, node) if _is_choice(node) else [node])]
    kept = [node for node in nodes if CONDITION not in node.input]
    del graph.node[:]
    graph.node.extend(kept)
    inputs = [info for info in graph.input if info.name != CONDITION]
    del graph.input[:]
    graph.input.extend(inputs)
    return made


def _is_choice(node: onnx.NodeProto) -> bool:
    return node.op_type == "If" and is_standard(node.domain) and list(node.input) == [CONDITION]


def _branch(graph: onnx.GraphProto, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The nodes of the branch that is taken with a cache; its outputs get the names of the node's."""
    branch = next(attribute.g for attribute in node.attribute if attribute.name == "then_branch")
    graph.initializer.extend(branch.initializer)
    graph.sparse_initializer.extend(branch.sparse_initializer)
    graph.value_info.extend(branch.value_info)
    names = {info.name: output for info, output in zip(branch.output, node.output, strict=True)}
    for inner in branch.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(inner)
        for listed in (copy.input, copy.output):
            for place, name in enumerate(listed):
                listed[place] = names.get(name, name)
        yield copy
