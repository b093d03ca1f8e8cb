"""Quantization as Neural Magic's exporter writes it, which is the form that DeepSparse runs.

Of each Conv, and of each Gemm or MatMul by a constant: QuantizeLinear of the operand, ConvInteger or MatMulInteger with
weights of uint8, whose pruned ones are the zero point, Add of an int32 bias, Cast, and Mul by the scale of a sum.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

__all__ = ["as_integers"]

_ZERO = 128
_LAYERS = ("Conv", "Gemm", "MatMul")


def as_integers(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """The quantized model; activations get their ranges on ``feeds``."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    layers = [node for node in model.graph.node if node.op_type in _LAYERS and node.input[1] in constants]
    ranges = _ranges(model, sorted({node.input[0] for node in layers}), feeds)
    nodes: list[onnx.NodeProto] = []
    made: dict[str, np.ndarray] = {}
    quantized: set[str] = set()
    for node in model.graph.node:
        if node not in layers:
            nodes.append(node)
            continue
        x, name = node.input[0], node.name
        x_scale, x_zero = ranges[x]
        if x not in quantized:
            quantized.add(x)
            made[f"{x}.scale"], made[f"{x}.zero"] = np.float32(x_scale), np.uint8(x_zero)
            nodes.append(helper.make_node("QuantizeLinear", [x, f"{x}.scale", f"{x}.zero"], [f"{x}.quantized"]))
        weight = constants[node.input[1]]
        w_scale = max(float(np.abs(weight).max()), 1e-12) / 127
        made[f"{name}.weight_quantized"] = (np.rint(weight / w_scale) + _ZERO).astype(np.uint8)
        made[f"{name}.weight_zero"] = np.uint8(_ZERO)
        scale = np.float32(x_scale * w_scale)
        bias = constants[node.input[2]] if len(node.input) > 2 else np.zeros(1, np.float32)
        stored = np.rint(bias / scale).astype(np.int32)
        made[f"{name}.bias_quantized"] = stored.reshape(1, -1, 1, 1) if node.op_type == "Conv" else stored
        made[f"{name}.scale"] = scale
        kind = "ConvInteger" if node.op_type == "Conv" else "MatMulInteger"
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        operands = [f"{x}.quantized", f"{name}.weight_quantized", f"{x}.zero", f"{name}.weight_zero"]
        nodes += [
            helper.make_node(kind, operands, [f"{name}.sums"], name=f"{name}.integer", **attributes),
            helper.make_node("Add", [f"{name}.sums", f"{name}.bias_quantized"], [f"{name}.biased"]),
            helper.make_node("Cast", [f"{name}.biased"], [f"{name}.cast"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Mul", [f"{name}.cast", f"{name}.scale"], list(node.output)),
        ]
    of_layers = {name for node in layers for name in node.input[1:]}
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in of_layers]
    kept += [numpy_helper.from_array(np.asarray(value), name) for name, value in made.items()]
    graph = helper.make_graph(nodes, "integers", model.graph.input, model.graph.output, kept)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def _ranges(model: onnx.ModelProto, names: list[str], feeds: Mapping[str, np.ndarray]) -> dict[str, tuple[float, int]]:
    """Scale and zero point of each value, from the least to the largest that a run finds."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    inputs = {info.name for info in model.graph.input}
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in inputs)
    session = onnxruntime.InferenceSession(shown.SerializeToString(), providers=["CPUExecutionProvider"])
    found = dict(feeds)
    for name in names:
        if name not in inputs:
            (found[name],) = session.run([name], feeds)
    ranges = {}
    for name in names:
        low, high = min(float(found[name].min()), 0.0), max(float(found[name].max()), 1e-6)
        scale = (high - low) / 255
        ranges[name] = (scale, round(-low / scale))
    return ranges
