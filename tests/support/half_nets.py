"""Models in half precision, as exporters write them: weights, activations and caches."""

from __future__ import annotations

import numpy as np
import onnx

__all__ = ["halved"]

_HALVES = {onnx.TensorProto.FLOAT16: np.float16}


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with float16 wherever it has float32."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(_half(tensor))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.FLOAT16
            elif attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == onnx.TensorProto.FLOAT:
                attribute.t.CopyFrom(_half(attribute.t))
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return made


def _half(tensor: onnx.TensorProto) -> onnx.TensorProto:
    limit = float(np.finfo(np.float16).max)
    values = np.clip(onnx.numpy_helper.to_array(tensor), -limit, limit).astype(np.float16)
    return onnx.numpy_helper.from_array(values, tensor.name)
