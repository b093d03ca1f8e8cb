"""Graphs that an ``If`` chooses between, as merged decoders do by an input; and the graph with one of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.operators.domains import is_standard

__all__ = ["choosing_inputs", "conditions", "take_branch"]


def choosing_inputs(graph: gs.Graph) -> tuple[str, ...]:
    """Inputs of the model that are the condition of an ``If``, in the order of its nodes."""
    booleans = {t.name for t in graph.inputs if not isinstance(t, gs.Constant) and t.dtype == np.bool_}
    return tuple(name for name in conditions(graph) if name in booleans)


def conditions(graph: gs.Graph) -> tuple[str, ...]:
    """What the ``If`` nodes of a graph choose by, in their order."""
    return tuple(dict.fromkeys(name for node in graph.nodes if (name := _condition(node))))


def take_branch(graph: gs.Graph, condition: str, value: bool) -> None:
    """Put what runs where a condition is ``value`` in the place of each ``If`` that it chooses by.

    What makes it stays, without a reader if it only chose.

    Args:
        graph: changed in place.
        condition: name of an input, or of a value of the graph.
        value: of it.
    """
    names = {name for level in (graph, *graph.subgraphs(recursive=True)) for name in level.tensors()}
    inlined: set[str] = set()
    nodes: list[gs.Node] = []
    for node in graph.nodes:
        if _condition(node) == condition:
            nodes.extend(_body(node, "then_branch" if value else "else_branch", inlined, names))
        else:
            nodes.append(node)
    labels = {node.name for node in nodes}
    used: set[str] = set()
    for node in nodes:
        # Names of nodes are unique as well, to onnxruntime at least.
        if node.name in used:
            node.name = _new_name(node.name, labels)
        if node.name:
            used.add(node.name)
    graph.nodes = nodes


def _condition(node: gs.Node) -> str:
    is_choice = node.op == "If" and is_standard(node.domain) and len(node.inputs) == 1
    return str(node.inputs[0].name) if is_choice else ""


def _body(node: gs.Node, branch: str, inlined: set[str], taken: set[str]) -> Iterator[gs.Node]:
    """The nodes of a branch, whose results are those of ``node``."""
    body: gs.Graph = node.attrs[branch]
    results = list(zip(body.outputs, node.outputs, strict=True))
    node.inputs.clear()
    node.outputs.clear()
    made = {id(tensor) for inner in body.nodes for tensor in inner.outputs}
    names = {tensor.name for inner in body.nodes for tensor in inner.outputs if tensor.name}
    # Two branches may use one name, which is one value in a graph.
    for inner in body.nodes:
        for tensor in inner.outputs:
            if tensor.name in inlined:
                tensor.name = _new_name(tensor.name, taken)
    inlined |= names
    handed_on = []
    for own, outer in results:
        if id(own) in made:
            made.discard(id(own))
            _put(outer, own)
        else:
            # A constant, a value from outside, or one that is another result already.
            source = next((result for other, result in results if other is own and result.inputs), own)
            handed_on.append(gs.Node("Identity", f"{outer.name}: Identity", inputs=[source], outputs=[outer]))
    yield from body.nodes
    yield from handed_on


def _put(outer: gs.Tensor, inner: gs.Tensor) -> None:
    """Let ``outer`` be made and read where ``inner`` is."""
    producer = inner.inputs[0]
    for reader in list(inner.outputs):
        for place, tensor in enumerate(reader.inputs):
            if tensor is inner:
                reader.inputs[place] = outer
    for place, tensor in enumerate(producer.outputs):
        if tensor is inner:
            producer.outputs[place] = outer


def _new_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    taken.add(name)
    return name
