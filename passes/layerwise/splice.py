"""Putting new nodes where a layer stands in the graph, and letting go of its weight."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import shape_of
from sift_onnx.passes.layerwise.linear_layers import LinearLayer, Occurrence
from sift_onnx.passes.node_builder import NodeBuilder

__all__ = ["release", "splice"]


def splice(graph: gs.Graph, builder: NodeBuilder, occurrence: Occurrence, result: gs.Variable) -> None:
    """Put the builder's nodes where the occurrence's nodes are; ``result`` becomes what they made."""
    old, output = occurrence.nodes, occurrence.output
    index = next(i for i, node in enumerate(graph.nodes) if node is old[-1])
    for node in old:
        node.inputs.clear()
        node.outputs.clear()
    result.inputs[0].outputs[0] = output
    graph.nodes[index : index + 1] = builder.take_nodes()
    gone = {id(node) for node in old}
    graph.nodes = [node for node in graph.nodes if id(node) not in gone]


def release(layer: LinearLayer, part: gs.Constant) -> None:
    """Let go of the weight of a layer that has been replaced, where others ask for its shape or type only.

    Exporters compute the zeros of a missing bias from the shape of the weight, which would else stay in the file.

    Args:
        layer: the layer.
        part: one of the weights that took its place, of the same type.
    """
    weight = layer.weight_layer.constant
    for reader in list(weight.outputs):
        if reader.op == "Shape" and len(reader.inputs) == 1:
            shape = list(shape_of(weight))
            asked = shape[slice(reader.attrs.get("start", 0), reader.attrs.get("end", len(shape)))]
            reader.inputs.clear()
            reader.op, reader.attrs = "Constant", {"value": gs.Constant("", np.asarray(asked, dtype=np.int64))}
        elif reader.op == "CastLike" and reader.inputs[0] is not weight:
            reader.inputs[1] = part
