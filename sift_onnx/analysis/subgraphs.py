"""What the subgraphs of If, Loop and Scan read from around them."""

from __future__ import annotations

import onnx_graphsurgeon as gs

__all__ = ["captured", "outer_tensors"]


def captured(node: gs.Node) -> set[str]:
    """Names of the tensors that subgraphs of ``node``, at any depth, read but do not make."""
    graphs = (value for value in node.attrs.values() if isinstance(value, gs.Graph))
    return {tensor.name for graph in graphs for tensor in outer_tensors(graph) if tensor.name}


def outer_tensors(graph: gs.Graph) -> list[gs.Tensor]:
    """What a subgraph, or one inside it, reads without making it; each tensor once."""
    found: dict[int, gs.Tensor] = {}
    made = {id(tensor) for tensor in graph.inputs} | {id(tensor) for node in graph.nodes for tensor in node.outputs}
    for node in graph.nodes:
        inside = [t for v in node.attrs.values() if isinstance(v, gs.Graph) for t in outer_tensors(v)]
        found.update((id(t), t) for t in (*node.inputs, *inside) if not t.is_empty())
    found.update((id(t), t) for t in graph.outputs)
    return [tensor for key, tensor in found.items() if key not in made]
