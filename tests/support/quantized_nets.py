"""Small pruned nets, quantized in each of the spellings that models come in."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from nets import Net
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

Array = np.ndarray[Any, np.dtype[Any]]
MICROSOFT = "com.microsoft"

# By name: settings of onnxruntime's static quantizer.
STATIC: dict[str, dict[str, Any]] = {
    "qdq": {"quant_format": QuantFormat.QDQ, "activation_type": QuantType.QUInt8},
    "qdq per channel": {
        "quant_format": QuantFormat.QDQ,
        "activation_type": QuantType.QUInt8,
        "per_channel": True,
    },
    "qdq of int8": {"quant_format": QuantFormat.QDQ},
    "qdq with weights of uint8": {
        "quant_format": QuantFormat.QDQ,
        "activation_type": QuantType.QUInt8,
        "weight_type": QuantType.QUInt8,
        "extra_options": {"WeightSymmetric": True},
    },
    "qdq with asymmetric weights of uint8": {
        "quant_format": QuantFormat.QDQ,
        "activation_type": QuantType.QUInt8,
        "weight_type": QuantType.QUInt8,
    },
    "qoperator": {"quant_format": QuantFormat.QOperator, "activation_type": QuantType.QUInt8},
    "qoperator per channel": {"quant_format": QuantFormat.QOperator, "per_channel": True},
}
# Of those that store no zero points.
SYMMETRIC = {
    "symmetric qdq of int8": {
        "quant_format": QuantFormat.QDQ,
        "extra_options": {"ActivationSymmetric": True, "WeightSymmetric": True},
    },
}


class PrunedNet(Net):
    """Weights of which most quads along the input features are zero, and every second one of the others."""

    def weight(self, *shape: int, name: str = "", fan_in: int = 0) -> str:
        values = self._rng.standard_normal(shape).astype(np.float32)
        inputs = 1 if len(shape) > 2 else 0
        quads = [-(-size // 4) if axis == inputs else size for axis, size in enumerate(shape)]
        live = np.repeat(self._rng.random(quads) < 0.3, 4, axis=inputs).take(range(shape[inputs]), axis=inputs)
        values *= live & (self._rng.random(shape) < 0.5)
        return self.constant(values * np.float32(np.sqrt(6 / max(fan_in or shape[0], 1))), name)


@functools.cache
def images_net() -> onnx.ModelProto:
    """A stem, a residual block, a depthwise and a strided layer, pooling, a head; [n, 3, 12, 12] to [n, 10]."""
    net = PrunedNet(opset=17)
    x = net.input("x", 2, 3, 12, 12, declared=["n", 3, 12, 12])
    x = net.op("Relu", net.conv(x, 3, 16, 3, name="stem"))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, name="pool")
    y = net.op("Relu", net.conv(x, 16, 16, 3, name="first"))
    y = net.conv(y, 16, 16, 3, name="second")
    x = net.op("Relu", net.op("Add", y, x, name="sum"))
    x = net.op("Relu", net.conv(x, 16, 16, 3, name="depthwise", group=16))
    x = net.op("Relu", net.conv(x, 16, 24, 1, name="strided", strides=[2, 2]))
    x = net.op("Flatten", net.op("GlobalAveragePool", x, name="mean"))
    bias = net.constant(np.linspace(-1, 1, 10, dtype=np.float32), "head.bias")
    net.output(net.op("Gemm", x, net.weight(24, 10, name="head.weight"), bias, name="head"))
    return net.model()


@functools.cache
def tokens_net() -> onnx.ModelProto:
    """Two products with a bias, GELU and layer normalization; [n, t, 24] to [n, t, 8]."""
    net = PrunedNet(opset=17)
    x = net.input("x", 2, 5, 24, declared=["n", "t", 24])
    y = net.op("Add", net.dense(x, 24, 40, name="up"), net.constant(np.linspace(-1, 1, 40, dtype=np.float32)))
    half = net.op("Mul", y, net.constant(np.float32(0.5)))
    erf = net.op("Erf", net.op("Mul", y, net.constant(np.float32(2**-0.5))))
    y = net.op("Mul", half, net.op("Add", erf, net.constant(np.float32(1))))
    y = net.op("Add", net.dense(y, 40, 24, name="down"), net.constant(np.linspace(1, -1, 24, dtype=np.float32)))
    ones, zeros = net.constant(np.ones(24, np.float32)), net.constant(np.zeros(24, np.float32))
    x = net.op("LayerNormalization", net.op("Add", x, y), ones, zeros)
    net.output(net.dense(x, 24, 8, name="head"))
    return net.model()


@functools.cache
def upsampled_net() -> onnx.ModelProto:
    """A transposed convolution after a convolution; [n, 8, 5, 5] to [n, 8, 10, 10]."""
    net = PrunedNet(opset=17)
    x = net.op("Relu", net.conv(net.input("x", 2, 8, 5, 5, declared=["n", 8, 5, 5]), 8, 16, 3, name="before"))
    net.output(net.op("ConvTranspose", x, net.weight(16, 8, 2, 2, name="up.weight"), strides=[2, 2], name="up"))
    return net.model()


@functools.cache
def attention_net(nan_to_zero: bool = False) -> onnx.ModelProto:
    """Attention of four heads with a mask for all sequences; [n, 9, 32] to [n, 9, 32].

    With ``nan_to_zero`` weights of a token that attends to nothing are zero, as torch exports it.
    """
    net = PrunedNet(opset=17)
    x = net.input("x", 2, 9, 32, declared=["n", 9, 32])

    def heads(name: str, order: list[int]) -> str:
        y = net.op("Add", net.dense(x, 32, 32, name=name), net.constant(np.linspace(-1, 1, 32, dtype=np.float32)))
        return str(net.op("Transpose", net.op("Reshape", y, net.constant(np.array([0, 9, 4, 8]))), perm=order))

    scores = net.op("MatMul", heads("q", [0, 2, 1, 3]), heads("k", [0, 2, 3, 1]), name="scores")
    scores = net.op("Mul", scores, net.constant(np.float32(8**-0.5)))
    scores = net.op("Add", scores, net.constant(np.triu(np.full((9, 9), -4, np.float32), 1)))
    weights = net.op("Softmax", scores, axis=-1)
    if nan_to_zero:
        weights = net.op("Where", net.op("IsNaN", weights), net.constant(np.float32(0)), weights)
    y = net.op("MatMul", weights, heads("v", [0, 2, 1, 3]))
    y = net.op("Transpose", y, perm=[0, 2, 1, 3])
    net.output(net.op("Reshape", y, net.constant(np.array([0, 9, 32]))))
    return net.model()


@functools.cache
def gated_net() -> onnx.ModelProto:
    """x * sigmoid(x) after convolutions, branches that are split and joined, a resize; [n, 3, 8, 8] to 16 x 16."""
    net = PrunedNet(opset=17)
    x = net.conv(net.input("x", 2, 3, 8, 8, declared=["n", 3, 8, 8]), 3, 16, 3, name="stem")
    x = net.op("Mul", x, net.op("Sigmoid", x))
    first, second = net.op("Split", x, net.constant(np.array([8, 8])), axis=1, outputs=2, name="split")
    y = net.conv(second, 8, 8, 3, name="inner")
    y = net.op("Mul", y, net.op("Sigmoid", y))
    x = net.op("Concat", first, second, y, axis=1, name="joined")
    x = net.conv(x, 24, 8, 1, name="after")
    x = net.op("Resize", x, "", net.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest",
               coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    net.output(net.conv(x, 8, 8, 1, name="head"))
    return net.model()


@functools.cache
def steps_net() -> onnx.ModelProto:
    """Convolutions of one axis, a residual block and pooling among them, and a head; [n, 4, 20] to [n, 6]."""
    net = PrunedNet(opset=17)

    def conv(x: str, inputs: int, outputs: int, name: str, group: int = 1) -> str:
        weight = net.weight(outputs, inputs // group, 3, name=f"{name}.weight", fan_in=inputs // group * 3)
        bias = net.constant(np.linspace(-1, 1, outputs, dtype=np.float32), f"{name}.bias")
        return str(net.op("Conv", x, weight, bias, pads=[1, 1], group=group, name=name))

    x = net.op("Relu", conv(net.input("x", 2, 4, 20, declared=["n", 4, 20]), 4, 16, "stem"))
    x = net.op("MaxPool", x, kernel_shape=[2], strides=[2], name="pool")
    y = conv(net.op("Relu", conv(x, 16, 16, "first")), 16, 16, "second")
    x = net.op("Relu", net.op("Add", y, x, name="sum"))
    x = net.op("Relu", conv(x, 16, 16, "depthwise", group=16))
    x = net.op("Flatten", net.op("GlobalAveragePool", x, name="mean"))
    net.output(net.op("Gemm", x, net.weight(16, 6, name="head.weight"), name="head"))
    return net.model()


class Batches(CalibrationDataReader):
    def __init__(self, model: onnx.ModelProto, seed: int) -> None:
        feed = inputs_of(model, 4, seed)
        self._left = iter([feed, feed])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._left, None)


def inputs_of(model: onnx.ModelProto, batch: int, seed: int = 0, **sizes: int) -> dict[str, Array]:
    """Noise for the only input, of a batch; other open axes have ``sizes``, or 5."""
    (info,) = model.graph.input
    dims = [dim.dim_value or sizes.get(dim.dim_param, 5) for dim in info.type.tensor_type.shape.dim]
    rng = np.random.default_rng(seed)
    return {info.name: rng.standard_normal([batch, *dims[1:]]).astype(np.float32)}


@functools.cache
def static(net: str, spelling: str) -> onnx.ModelProto:
    """One of the nets by onnxruntime's static quantizer, in a spelling of :data:`STATIC` or :data:`SYMMETRIC`."""
    model = _NETS[net]()
    settings = (STATIC | SYMMETRIC)[spelling]
    return _through_files(model, lambda own, path: quantize_static(own, path, Batches(model, 1), **settings))


def quantized_in_the_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """Weights as floats that the graph quantizes and dequantizes, as after quantization-aware training."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    constants = {tensor.name: tensor for tensor in made.graph.initializer}
    nodes = []
    for node in made.graph.node:
        tensor = constants.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if tensor is not None and tensor.data_type == onnx.TensorProto.INT8:
            values, scale = (onnx.numpy_helper.to_array(constants[name]) for name in node.input[:2])
            axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
            shape = [-1 if i == axis else 1 for i in range(values.ndim)] if scale.size > 1 else []
            name = f"{tensor.name}.float"
            made.graph.initializer.append(onnx.numpy_helper.from_array(values * scale.reshape(shape), name))
            quantized = onnx.helper.make_node(
                "QuantizeLinear", [name, *node.input[1:]], [f"{name}.quantized"], axis=axis
            )
            nodes.append(quantized)
            node.input[0] = quantized.output[0]
        nodes.append(node)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def within_seven_bits(model: onnx.ModelProto) -> onnx.ModelProto:
    """With Clip behind each QuantizeLinear of uint8, as torch exports activations of 7 bits."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    bounds = [onnx.numpy_helper.from_array(np.uint8(value), f"bound {value}") for value in (0, 127)]
    made.graph.initializer.extend(bounds)
    nodes = []
    for node in made.graph.node:
        nodes.append(node)
        if node.op_type == "QuantizeLinear":
            name = node.output[0]
            node.output[0] = f"{name}.8"
            nodes.append(onnx.helper.make_node("Clip", [node.output[0], *(bound.name for bound in bounds)], [name]))
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def of_weights_alone(model: onnx.ModelProto) -> onnx.ModelProto:
    """A statically quantized model whose activations are floats."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    constants = {tensor.name for tensor in made.graph.initializer}
    sources: dict[str, str] = {}
    nodes = []
    for node in made.graph.node:
        kept = node.op_type not in ("QuantizeLinear", "DequantizeLinear") or node.input[0] in constants
        if not kept:
            sources[node.output[0]] = sources.get(node.input[0], node.input[0])
            continue
        node.input[:] = [sources.get(name, name) for name in node.input]
        nodes.append(node)
    outputs = {info.name for info in made.graph.output}
    for output in outputs & set(sources):
        nodes.append(onnx.helper.make_node("Identity", [sources[output]], [output]))
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


@functools.cache
def dynamic(net: str, weight_type: QuantType = QuantType.QInt8, per_channel: bool = False) -> onnx.ModelProto:
    """One of the nets by onnxruntime's dynamic quantizer."""
    model = _NETS[net]()
    settings = {"weight_type": weight_type, "per_channel": per_channel}
    return _through_files(model, lambda own, path: quantize_dynamic(own, path, **settings))


def _through_files(model: onnx.ModelProto, quantize: Any) -> onnx.ModelProto:
    """Quantizers move the weights of a ModelProto to a file of their own, so they get a file."""
    with tempfile.TemporaryDirectory() as folder:
        own, made = (os.fspath(Path(folder) / name) for name in ("float.onnx", "quantized.onnx"))
        onnx.save(model, own)
        quantize(own, made)
        return onnx.load(made)


_NETS = {
    "images": images_net, "tokens": tokens_net, "gated": gated_net, "attention": attention_net,
    "guarded attention": functools.partial(attention_net, nan_to_zero=True),
    "upsampled": upsampled_net, "steps": steps_net,
}  # fmt: skip


def integer_net(zero: int = 128, span: int = 100, is_pooled: bool = False, has_head: bool = True) -> onnx.ModelProto:
    """As Neural Magic's exporter writes it: ConvInteger, int32 bias, Cast, Mul; a pruned weight is the zero point.

    [n, 8, 10, 10] to [n, 6]. Weights are ``zero``, or up to ``span`` from it; ``is_pooled`` has the maximum of windows
    between two layers. Without a head, the result is that of the convolutions.
    """
    rng = np.random.default_rng(0)
    net = Net(opset=13)

    def integers(*shape: int) -> Array:
        kept = rng.random(shape) < 0.25
        values = np.clip(rng.integers(zero - span, zero + span, shape), 0, 255)
        return np.where(kept, values, zero).astype(np.uint8)

    def quantized(x: str, scale: float, x_zero: int) -> tuple[str, str]:
        named = net.constant(np.float32(scale)), net.constant(np.uint8(x_zero))
        return str(net.op("QuantizeLinear", x, *named)), named[1]

    def layer(x: str, kind: str, scale: float, x_zero: int, *shape: int, name: str, **attrs: Any) -> str:
        q, zero_name = quantized(x, scale, x_zero)
        weight = net.constant(integers(*shape), f"{name}.weight_quantized")
        y = net.op(kind, q, weight, zero_name, net.constant(np.uint8(zero)), name=name, **attrs)
        rows = shape[0] if kind == "ConvInteger" else shape[-1]
        bias = rng.integers(-500, 500, rows).astype(np.int32)
        bias = bias.reshape(1, rows, 1, 1) if kind == "ConvInteger" else bias
        y = net.op("Cast", net.op("Add", y, net.constant(bias)), to=1)
        return str(net.op("Mul", y, net.constant(np.float32(scale * 0.004)), name=f"{name}.scaled"))

    x = net.input("x", 2, 8, 10, 10, declared=["n", 8, 10, 10])
    x = net.op("Relu", layer(x, "ConvInteger", 0.02, 121, 16, 8, 3, 3, name="a", pads=[1] * 4))
    y = net.op("Relu", layer(x, "ConvInteger", 0.03, 0, 16, 16, 3, 3, name="b", pads=[1] * 4))
    if is_pooled:
        y = net.op("MaxPool", y, kernel_shape=[3, 3], pads=[1] * 4)
    y = layer(y, "ConvInteger", 0.05, 0, 16, 16, 1, 1, name="c")
    if not has_head:
        net.output(y)
        return net.model()
    x = net.op("Relu", net.op("Add", y, x))
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    net.output(layer(x, "MatMulInteger", 0.02, 0, 16, 6, name="head"))
    return net.model()
