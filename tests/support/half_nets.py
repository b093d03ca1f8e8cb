"""Models in half precision, as exporters write them: weights, activations and caches."""

from __future__ import annotations

import numpy as np
import onnx

__all__ = ["halved", "rounded", "with_half_caches"]

_TYPES = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}


def halved(model: onnx.ModelProto, kind: str = "float16") -> onnx.ModelProto:
    """The same with float16, or bfloat16, wherever it has float32."""
    half = _TYPES[kind]
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(_rounded(tensor, half))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = half
            elif attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == onnx.TensorProto.FLOAT:
                attribute.t.CopyFrom(_rounded(attribute.t, half))
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            info.type.tensor_type.elem_type = half
    return made


def with_half_caches(model: onnx.ModelProto) -> onnx.ModelProto:
    """A decoder of float32 that keeps its cache in float16, and casts what it reads and what it makes."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    names = {info.name for info in (*graph.input, *graph.output) if info.name.startswith(("past", "present"))}
    for node in graph.node:
        for listed in (node.input, node.output):
            for place, name in enumerate(listed):
                listed[place] = f"{name}:wide" if name in names else name
    for info in (*graph.input, *graph.output):
        if info.name in names:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    pasts = [info.name for info in graph.input if info.name in names]
    presents = [info.name for info in graph.output if info.name in names]
    before = [onnx.helper.make_node("Cast", [n], [f"{n}:wide"], f"cast {n}", to=onnx.TensorProto.FLOAT) for n in pasts]
    nodes = [*before, *graph.node]
    nodes += [onnx.helper.make_node("Cast", [f"{n}:wide"], [n], f"cast {n}", to=_TYPES["float16"]) for n in presents]
    del graph.node[:]
    graph.node.extend(nodes)
    return made


def rounded(model: onnx.ModelProto, kind: str) -> onnx.ModelProto:
    """The same with its constants rounded, and all else in float32."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for tensor in made.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(_rounded(tensor, _TYPES[kind])).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    return made


def _rounded(tensor: onnx.TensorProto, half: int) -> onnx.TensorProto:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(half)
    limit = 65504.0 if half == onnx.TensorProto.FLOAT16 else 3.38e38
    values = np.clip(onnx.numpy_helper.to_array(tensor), -limit, limit)
    return onnx.numpy_helper.from_array(values.astype(dtype), tensor.name)
