"""onnxruntime's SkipLayerNormalization in two nodes: what it subtracts can be centred only where it is a tensor.

onnxruntime fuses the two again when it loads the model.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from sift_onnx.operators.domains import MICROSOFT, canonical_domain
from sift_onnx.passes.node_builder import NodeBuilder

__all__ = ["spell_skip_normalizations"]

# LayerNormalization is an operator since then.
_OLDEST_OPSET = 17
# What the operators take where no epsilon is stated.
_EPSILON = 1e-12


def spell_skip_normalizations(graph: gs.Graph) -> None:
    """Replace every SkipLayerNormalization by an Add and a LayerNormalization; in place, with the same tensor names."""
    fused = [node for node in graph.nodes if _is_fused(node)]
    if not fused:
        return
    builder = NodeBuilder(graph)
    if builder.opset < _OLDEST_OPSET:
        return
    for node in fused:
        x, skip, scale, shift, bias = (*node.inputs, *[gs.Variable.empty()] * 3)[:5]
        normalized, summed = node.outputs[0], node.outputs[3] if len(node.outputs) > 3 else gs.Variable.empty()
        epsilon = float(node.attrs.get("epsilon", _EPSILON))
        place = next(i for i, other in enumerate(graph.nodes) if other is node)
        node.inputs.clear()
        node.outputs.clear()
        if not bias.is_empty():
            x = builder.node("Add", [x, bias], like=normalized, name=f"{normalized.name}_biased")
        total = builder.node("Add", [x, skip], like=normalized, name=f"{normalized.name}_sum")
        parameters = [scale] if shift.is_empty() else [scale, shift]
        builder.node("LayerNormalization", [total, *parameters], like=normalized, name=f"{normalized.name}_norm")
        nodes = builder.take_nodes()
        nodes[-1].attrs.update(axis=-1, epsilon=epsilon)
        nodes[-1].outputs[0] = normalized
        if not summed.is_empty():
            nodes[-2].outputs[0] = summed
            nodes[-1].inputs[0] = summed
        graph.nodes[place : place + 1] = nodes


def _is_fused(node: gs.Node) -> bool:
    statistics = [tensor for tensor in node.outputs[1:3] if tensor.name and tensor.outputs]
    return node.op == "SkipLayerNormalization" and canonical_domain(node.domain) == MICROSOFT and not statistics
