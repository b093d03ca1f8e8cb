"""Removal of what an exporter leaves in a graph besides the model: traces of the machine and of the tracing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from sift_onnx.models.graph_editing import all_nodes, keep
from sift_onnx.models.shape_arithmetic import settle_shapes

__all__ = ["clean"]


def clean(
    proto: onnx.ModelProto, name: str, parameters: Collection[str], axes: Mapping[str, Mapping[int, str]]
) -> onnx.ModelProto:
    """Bring an exported graph into the form that is stored.

    1. Documentation strings and metadata are removed: stack traces hold paths, symbol names differ from run to run.
    2. Constants are initializers, initializers are not inputs of the graph, and unread values are removed.
    3. A bias of zeros that the exporter added (it is not one of ``parameters``) is removed.
    4. Attributes are in alphabetical order, so that equal graphs have equal bytes.
    5. Open axes get their names; shape arithmetic becomes constants where it can
       (:mod:`~sift_onnx.models.shape_arithmetic`); shapes of intermediate values are inferred again.

    Args:
        proto: what the exporter returned; it is changed.
        name: the name that the graph gets.
        parameters: names of the module's parameters and buffers, which may be initializers or inputs of the graph.
        axes: names of open axes, by the name of an input or output and the number of the axis.

    Returns:
        The cleaned model.
    """
    graph = proto.graph
    graph.name = name
    del proto.metadata_props[:]
    proto.ClearField("doc_string")
    for message in (graph, *all_nodes(graph), *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        message.ClearField("doc_string")
        message.ClearField("metadata_props")
    _lift_constants(graph)
    _drop_invented_biases(graph, parameters)
    for node in all_nodes(graph):
        node.attribute.sort(key=lambda attribute: attribute.name)
    stored = {tensor.name for tensor in graph.initializer}
    keep(graph.input, lambda value: value.name not in stored)
    for value in (*graph.input, *graph.output):
        for axis, axis_name in axes.get(value.name, {}).items():
            value.type.tensor_type.shape.dim[axis].dim_param = axis_name
    names = {axis for named in axes.values() for axis in named.values()}
    _keep_known_shapes(graph, names)
    proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    graph = proto.graph
    settle_shapes(graph)
    _keep_known_shapes(graph, names)
    read = {value for node in all_nodes(graph) for value in node.input} | {value.name for value in graph.output}
    keep(graph.initializer, lambda tensor: tensor.name in read)
    keep(graph.input, lambda value: value.name in read or value.name not in parameters)
    return onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)


def _keep_known_shapes(graph: onnx.GraphProto, axes: Collection[str]) -> None:
    """Forget shapes of values that are gone, and those with sizes that are neither numbers nor names of open axes."""
    written = {name for node in graph.node for name in node.output}

    def is_known(value: onnx.ValueInfoProto) -> bool:
        dims = value.type.tensor_type.shape.dim
        return value.name in written and all(d.HasField("dim_value") or d.dim_param in axes for d in dims)

    keep(graph.value_info, is_known)


def _lift_constants(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensor = graph.initializer.add()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
    lifted = {tensor.name for tensor in graph.initializer}
    keep(graph.node, lambda node: node.op_type != "Constant" or node.output[0] not in lifted)


def _drop_invented_biases(graph: onnx.GraphProto, parameters: Collection[str]) -> None:
    invented = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in parameters}
    for node in graph.node:
        bias = invented.get(node.input[2]) if node.op_type == "Conv" and len(node.input) == 3 else None
        if bias is not None and not np.any(numpy_helper.to_array(bias)):
            del node.input[2]
