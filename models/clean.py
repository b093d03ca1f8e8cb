"""What an exporter leaves in a graph that does not belong into a file: traces of the machine, and of the tracing."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import onnx
from onnx import numpy_helper

__all__ = ["clean"]


def clean(proto: onnx.ModelProto, name: str, parameters: Collection[str], dynamic_batch: bool) -> onnx.ModelProto:
    """Bring an exported graph into the form that is stored.

    1. Documentation strings and metadata go: stack traces hold paths, symbol names differ from run to run.
    2. Initializers are no inputs of the graph; those that nothing reads go.
    3. A bias of zeros that the exporter made up (it is not one of ``parameters``) goes.
    4. Attributes are in alphabetical order, so that equal graphs have equal bytes.
    5. Batch axes are called ``batch``, and shapes of the values in between are inferred afresh.

    Args:
        proto: what the exporter returned; it is changed.
        name: the name that the graph gets.
        parameters: names of the module's parameters and buffers.
        dynamic_batch: whether the first axis of inputs and outputs is open.

    Returns:
        The cleaned model.
    """
    graph = proto.graph
    graph.name = name
    del proto.metadata_props[:]
    del graph.value_info[:]
    nodes = list(_nodes(graph))
    proto.ClearField("doc_string")
    for message in (graph, *nodes, *graph.input, *graph.output, *graph.initializer):
        message.ClearField("doc_string")
        message.ClearField("metadata_props")
    _drop_invented_biases(graph, parameters)
    for node in nodes:
        node.attribute.sort(key=lambda attribute: attribute.name)
    stored = {tensor.name for tensor in graph.initializer}
    read = {value for node in nodes for value in node.input} | {value.name for value in graph.output}
    for position in reversed(range(len(graph.input))):
        if graph.input[position].name in stored:
            del graph.input[position]
    for position in reversed(range(len(graph.initializer))):
        if graph.initializer[position].name not in read:
            del graph.initializer[position]
    if dynamic_batch:
        for value in (*graph.input, *graph.output):
            value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)


def _drop_invented_biases(graph: onnx.GraphProto, parameters: Collection[str]) -> None:
    invented = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in parameters}
    for node in graph.node:
        bias = invented.get(node.input[2]) if node.op_type == "Conv" and len(node.input) == 3 else None
        if bias is not None and not np.any(numpy_helper.to_array(bias)):
            del node.input[2]


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of the graphs inside it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)
