"""Models that are generated, for claims about models in general: convolutional, of tokens, mixed; tiny and large.

Weights are normal, and a share of each layer's is pruned at random. The batch is open; other sizes are fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
from generated_volumes import factorized_video, segmented_volume, video
from onnx import TensorProto, helper, numpy_helper

__all__ = ["GENERATED", "Graph", "Shape", "classifier", "detector", "encoder", "generate"]

Shape = tuple[int, ...]
_OPSET = 20
_ENCODED = 8  # channels of what an encoder makes


@dataclass
class Graph:
    """Nodes and constants, by the operators of exporters."""

    sparsity: float
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def weights(self, *shape: int, fan_in: int) -> str:
        scale = (2 / fan_in / (1 - self.sparsity)) ** 0.5
        values = scale * self.rng.standard_normal(shape, np.float32)
        return self.constant(values * (self.rng.random(shape) >= self.sparsity))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"{kind}_{len(self.nodes)}", **attributes))
        return name

    def conv(self, x: str, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, act: str = "Relu") -> str:
        weight = self.weights(outputs, inputs, kernel, kernel, fan_in=inputs * kernel**2)
        bias = self.constant(np.zeros(outputs))
        pads, strides = [kernel // 2] * 4, [stride] * 2
        return self.act(self.op("Conv", x, weight, bias, pads=pads, strides=strides), act)

    def depthwise(self, x: str, channels: int, stride: int, act: str) -> str:
        weight = self.constant(self.rng.standard_normal((channels, 1, 3, 3)) / 3)
        attributes = {"pads": [1] * 4, "strides": [stride] * 2, "group": channels}
        return self.act(self.op("Conv", x, weight, self.constant(np.zeros(channels)), **attributes), act)

    def split(self, x: str, size: int) -> list[str]:
        """Two halves of the channels."""
        names = [f"half{len(self.nodes)}_{i}" for i in range(2)]
        node = helper.make_node("Split", [x, self.constant([size, size], np.int64)], names, axis=1)
        node.name = f"Split_{len(self.nodes)}"
        self.nodes.append(node)
        return names

    def dense(self, x: str, inputs: int, outputs: int, act: str = "") -> str:
        product = self.op("MatMul", x, self.weights(inputs, outputs, fan_in=inputs))
        return self.act(self.op("Add", product, self.constant(np.zeros(outputs))), act)

    def act(self, x: str, kind: str) -> str:
        if kind == "Silu":
            return self.op("Mul", x, self.op("Sigmoid", x))
        return self.op(kind, x) if kind else x

    def norm(self, x: str, width: int) -> str:
        scale, shift = (self.constant(np.full(width, value)) for value in (1, 0))
        return self.op("LayerNormalization", x, scale, shift, axis=-1)

    def classified(self, x: str, channels: int) -> str:
        return self.dense(self.op("Flatten", self.op("GlobalAveragePool", x)), channels, 10)


def _residual(g: Graph, width: int, side: int, act: str = "Relu") -> tuple[str, Shape]:
    """Three stages of two residual blocks."""
    x = g.conv("x", 3, width, act=act)
    for stage in range(3):
        inputs, outputs = (width << stage) >> bool(stage), width << stage
        for block in range(2):
            stride = 2 if stage and not block else 1
            y = g.conv(x, inputs if not block else outputs, outputs, stride=stride, act=act)
            y = g.conv(y, outputs, outputs, act="")
            if stride == 2:
                x = g.conv(x, inputs, outputs, 1, 2, "")
            x = g.act(g.op("Add", y, x), act)
    return g.classified(x, width << 2), (3, side, side)


def _mobile(g: Graph, width: int, side: int) -> tuple[str, Shape]:
    """Inverted residuals, of which depthwise convolutions are dense."""
    x = g.conv("x", 3, width, stride=2, act="HardSwish")
    channels = width
    for stage in range(4):
        outputs = width << (stage + 1) // 2
        for block in range(2):
            y = g.conv(x, channels, 6 * channels, 1, act="HardSwish")
            y = g.depthwise(y, 6 * channels, 2 if not block and stage % 2 else 1, "HardSwish")
            y = g.conv(y, 6 * channels, outputs, 1, act="")
            x = g.op("Add", y, x) if block else y
            channels = outputs
    return g.classified(x, channels), (3, side, side)


def _channels_last(g: Graph, width: int, side: int) -> tuple[str, Shape]:
    """Inverted residuals on images with their channels last, turned around each convolution, as Keras exports them."""

    def turned(x: str, convolution: Callable[[str], str], act: str = "") -> str:
        first = g.op("Transpose", x, perm=[0, 3, 1, 2])
        return g.act(g.op("Transpose", convolution(first), perm=[0, 2, 3, 1]), act)

    def layer(x: str, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, act: str = "") -> str:
        return turned(x, partial(g.conv, inputs=inputs, outputs=outputs, kernel=kernel, stride=stride, act=""), act)

    x = layer("x", 3, width, 3, 2, "HardSwish")
    channels = width
    for stage in range(3):
        for block in range(2):
            inner, stride = 4 * channels, 1 if block or not stage else 2
            y = layer(x, channels, inner, act="HardSwish")
            y = turned(y, partial(g.depthwise, channels=inner, stride=stride, act=""), "HardSwish")
            y = layer(y, inner, width << stage)
            x = g.op("Add", x, y) if block else y
            channels = width << stage
    mean = g.op("ReduceMean", x, g.constant([1, 2], np.int64), keepdims=0)
    return g.dense(mean, channels, 10), (side, side, 3)


def _parted(g: Graph, width: int, side: int) -> tuple[str, Shape]:
    """Convolutions with operators between them that kernels do not have."""
    x = g.conv("x", 3, width, act="")
    for _ in range(4):
        x = g.op("InstanceNormalization", x, *(g.constant(np.full(width, value)) for value in (1, 0)))
        x = g.conv(g.op("Elu", x), width, width, act="")
    return g.classified(x, width), (3, side, side)


def _encoder(g: Graph, width: int, tokens: int, layers: int) -> tuple[str, Shape]:
    """A transformer's encoder."""
    depth, heads = min(64, width), max(1, width // 64)
    x = "x"
    apart, joined = (g.constant(sizes, np.int64) for sizes in ([0, 0, heads, depth], [0, 0, width]))
    for _ in range(layers):
        views = [g.op("Reshape", g.dense(x, width, width), apart) for _ in range(3)]
        q, k, v = (g.op("Transpose", view, perm=perm) for view, perm in
                   zip(views, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True))  # fmt: skip
        scores = g.op("Softmax", g.op("Mul", g.op("MatMul", q, k), g.constant(depth**-0.5)), axis=-1)
        mixed = g.op("Reshape", g.op("Transpose", g.op("MatMul", scores, v), perm=[0, 2, 1, 3]), joined)
        x = g.norm(g.op("Add", x, g.dense(mixed, width, width)), width)
        x = g.norm(g.op("Add", x, g.dense(g.dense(x, width, 4 * width, "Gelu"), 4 * width, width)), width)
    return g.dense(x, width, _ENCODED), (tokens, width)


def _gated(g: Graph, width: int, tokens: int, layers: int) -> tuple[str, Shape]:
    """gMLP: products over channels, and gates that are products over tokens."""
    x = "x"
    halves = g.constant([width, width], np.int64)
    for layer in range(layers):
        y = g.dense(g.norm(x, width), width, 2 * width, "Gelu")
        names = [f"half{layer}_{i}" for i in range(2)]
        g.nodes.append(helper.make_node("Split", [y, halves], names, name=f"Split_{layer}", axis=-1))
        turned = g.op("Transpose", g.norm(names[1], width), perm=[0, 2, 1])
        gate = g.op("Transpose", g.dense(turned, tokens, tokens), perm=[0, 2, 1])
        x = g.op("Add", x, g.dense(g.op("Mul", names[0], gate), width, width))
    return g.dense(x, width, _ENCODED), (tokens, width)


def _perceptron(g: Graph, width: int, layers: int) -> tuple[str, Shape]:
    x, inputs = "x", width // 2
    for _ in range(layers):
        x, inputs = g.dense(x, inputs, width, "Relu"), width
    return g.dense(x, width, 4), (width // 2,)


def _recurrent(g: Graph, width: int, side: int) -> tuple[str, Shape]:
    """Detection of speech: convolutions of a spectrogram, an LSTM, and layers behind it."""
    x = g.conv("x", 1, width)
    x = g.conv(x, width, width, stride=2)
    x = g.conv(x, width, 2 * width, stride=2)
    columns = g.op("Reshape", x, g.constant([0, -1, (side + 3) // 4], np.int64))
    steps = g.op("Transpose", columns, perm=[2, 0, 1])
    inputs = 2 * width * ((side + 3) // 4)
    recurrent = [g.weights(1, 4 * width, n, fan_in=n) for n in (inputs, width)]
    states = g.op("Squeeze", g.op("LSTM", steps, *recurrent, hidden_size=width), g.constant([1], np.int64))
    y = g.dense(g.op("Transpose", states, perm=[1, 0, 2]), width, 2 * width, "Relu")
    return g.op("Sigmoid", g.dense(y, 2 * width, 1)), (1, side, side)


def _detector(g: Graph, width: int, side: int) -> tuple[str, Shape]:
    """The shape of YOLOv8n for a width of 16: blocks that concatenate all that they make, a pyramid up and down."""

    def conv(x: str, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, act: str = "Silu") -> str:
        return g.conv(x, inputs, outputs, kernel, stride, act)

    def joined(*parts: str) -> str:
        return g.op("Concat", *parts, axis=1)

    def block(x: str, inputs: int, outputs: int, count: int, is_residual: bool) -> str:
        half = outputs // 2
        parts = g.split(conv(x, inputs, outputs), half)
        for _ in range(count):
            y = conv(conv(parts[-1], half, half, 3), half, half, 3)
            parts.append(g.op("Add", parts[-1], y) if is_residual else y)
        return conv(joined(*parts), (2 + count) * half, outputs)

    def enlarged(x: str) -> str:
        scales = g.constant([1, 1, 2, 2])
        attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor", "mode": "nearest"}
        return g.op("Resize", x, "", scales, **attributes)

    c1, c2, c3, c4, c5 = (width << i for i in range(5))
    x = conv(conv("x", 3, c1, 3, 2), c1, c2, 3, 2)
    x = conv(block(x, c2, c2, 1, True), c2, c3, 3, 2)
    x = third = block(x, c3, c3, 2, True)
    x = fourth = block(conv(x, c3, c4, 3, 2), c4, c4, 2, True)
    x = conv(block(conv(x, c4, c5, 3, 2), c5, c5, 1, True), c5, c4)
    pooled = [x]
    for _ in range(3):
        pooled.append(g.op("MaxPool", pooled[-1], kernel_shape=[5, 5], pads=[2] * 4, strides=[1, 1]))
    fifth = conv(joined(*pooled), 4 * c4, c5)
    up = block(joined(enlarged(fifth), fourth), c5 + c4, c4, 1, False)
    small = block(joined(enlarged(up), third), c4 + c3, c3, 1, False)
    middle = block(joined(conv(small, c3, c3, 3, 2), up), c3 + c4, c4, 1, False)
    large = block(joined(conv(middle, c4, c4, 3, 2), fifth), c4 + c5, c5, 1, False)
    made = []
    for level, channels in ((small, c3), (middle, c4), (large, c5)):
        heads = (64, 80)
        ends = [conv(conv(conv(level, channels, n, 3), n, n, 3), n, n, act="") for n in heads]
        made.append(g.op("Reshape", joined(*ends), g.constant([0, sum(heads), -1], np.int64)))
    return g.op("Concat", *made, axis=2), (3, side, side)


# By name: what is built, and its sizes.
GENERATED: dict[str, tuple[Callable[..., tuple[str, Shape]], dict[str, Any]]] = {
    "residual, tiny": (_residual, {"width": 8, "side": 16}),
    "residual, small": (_residual, {"width": 16, "side": 32}),
    "residual, medium": (_residual, {"width": 64, "side": 32}),
    "residual, large": (_residual, {"width": 96, "side": 56}),
    "residual, SiLU": (_residual, {"width": 32, "side": 40, "act": "Silu"}),
    "mobile, tiny": (_mobile, {"width": 8, "side": 32}),
    "mobile, medium": (_mobile, {"width": 24, "side": 64}),
    "mobile, large": (_mobile, {"width": 48, "side": 112}),
    "channels last, tiny": (_channels_last, {"width": 8, "side": 32}),
    "channels last, medium": (_channels_last, {"width": 32, "side": 96}),
    "parted, tiny": (_parted, {"width": 16, "side": 16}),
    "parted, medium": (_parted, {"width": 64, "side": 32}),
    "parted, large": (_parted, {"width": 128, "side": 56}),
    "encoder, tiny": (_encoder, {"width": 64, "tokens": 16, "layers": 2}),
    "encoder, small": (_encoder, {"width": 256, "tokens": 32, "layers": 3}),
    "encoder, medium": (_encoder, {"width": 512, "tokens": 128, "layers": 2}),
    "encoder, large": (_encoder, {"width": 768, "tokens": 128, "layers": 4}),
    "gMLP, tiny": (_gated, {"width": 32, "tokens": 16, "layers": 2}),
    "gMLP, small": (_gated, {"width": 128, "tokens": 64, "layers": 4}),
    "gMLP, medium": (_gated, {"width": 384, "tokens": 196, "layers": 4}),
    "perceptron, tiny": (_perceptron, {"width": 32, "layers": 2}),
    "perceptron, small": (_perceptron, {"width": 256, "layers": 4}),
    "perceptron, large": (_perceptron, {"width": 2048, "layers": 4}),
    "recurrent, tiny": (_recurrent, {"width": 16, "side": 24}),
    "recurrent, medium": (_recurrent, {"width": 64, "side": 48}),
    "video, tiny": (video, {"width": 8, "frames": 4, "side": 16}),
    "video, medium": (video, {"width": 32, "frames": 8, "side": 56}),
    "factorized video, tiny": (factorized_video, {"width": 8, "frames": 4, "side": 16}),
    "factorized video, medium": (factorized_video, {"width": 32, "frames": 8, "side": 56}),
    "volume, tiny": (segmented_volume, {"width": 8, "frames": 8, "side": 16}),
    "volume, medium": (segmented_volume, {"width": 16, "frames": 16, "side": 48}),
}


def generate(name: str, sparsity: float) -> tuple[onnx.ModelProto, Shape]:
    """A model with the input ``x`` and the output ``y``.

    Args:
        name: one of ``GENERATED``.
        sparsity: share of the weights that are pruned, but for depthwise ones.

    Returns:
        The model, and the shape of an item of its input.
    """
    build, sizes = GENERATED[name]
    return _model(build, sizes, sparsity)


def encoder(width: int, layers: int, sparsity: float) -> onnx.ModelProto:
    """A transformer's encoder of sequences of any length, [batch, tokens, width], from ``x`` to ``y``."""
    model, _ = _model(_encoder, {"width": width, "tokens": 128, "layers": layers}, sparsity)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "tokens"
    return model


def residual(width: int, sparsity: float) -> onnx.ModelProto:
    """A residual network for images of any size, from ``x`` to ``y``."""
    model, _ = _model(_residual, {"width": width, "side": 128}, sparsity)
    for axis, name in ((2, "height"), (3, "width")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    return model


def classifier(width: int, layers: int, sparsity: float) -> onnx.ModelProto:
    """Classes of a text, from ``ids`` to ``classes``: words and places before :func:`encoder`, and its first token."""
    rng = np.random.default_rng(2)

    def constant(name: str, values: Any) -> onnx.TensorProto:
        return numpy_helper.from_array(np.asarray(values), name)

    before = helper.make_graph(
        [
            helper.make_node("Shape", ["ids"], ["sizes"]),
            helper.make_node("Gather", ["sizes", "one"], ["count"]),
            helper.make_node("Range", ["zero", "count", "one"], ["places"]),
            helper.make_node("Gather", ["words", "ids"], ["word"], name="word"),
            helper.make_node("Gather", ["positions", "places"], ["position"], name="position"),
            helper.make_node("Add", ["word", "position"], ["x"], name="embedded"),
        ],
        "before",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "tokens"])],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "tokens", width])],
        [
            constant("words", rng.standard_normal((5000, width)).astype(np.float32)),
            constant("positions", rng.standard_normal((512, width)).astype(np.float32)),
            constant("zero", np.int64(0)),
            constant("one", np.int64(1)),
        ],
    )
    behind = helper.make_graph(
        [
            helper.make_node("Gather", ["y", "first"], ["token"], axis=1, name="token"),
            helper.make_node("Tanh", ["token"], ["squashed"]),
            helper.make_node("MatMul", ["squashed", "head"], ["classes"], name="classes"),
        ],
        "behind",
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "tokens", _ENCODED])],
        [helper.make_tensor_value_info("classes", TensorProto.FLOAT, ["batch", 3])],
        [constant("first", np.int64(0)), constant("head", rng.standard_normal((_ENCODED, 3)).astype(np.float32))],
    )
    body = encoder(width, layers, sparsity)
    joined = onnx.compose.merge_graphs(before, body.graph, [("x", "x")])
    graph = onnx.compose.merge_graphs(joined, behind, [("y", "y")])
    return helper.make_model(graph, opset_imports=body.opset_import, ir_version=body.ir_version)


def detector(side: int, sparsity: float) -> onnx.ModelProto:
    """A detector of YOLOv8n's shape for images of ``side`` pixels, from ``x`` to ``y``."""
    model, _ = _model(_detector, {"width": 16, "side": side}, sparsity, opset=17)
    return model


def _model(
    build: Callable[..., tuple[str, Shape]], sizes: dict[str, Any], sparsity: float, opset: int = _OPSET
) -> tuple[onnx.ModelProto, Shape]:
    graph = Graph(sparsity)
    last, shape = build(graph, **sizes)
    graph.nodes.append(helper.make_node("Identity", [last], ["y"], name="last"))
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *shape])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    proto = helper.make_graph(graph.nodes, "generated", [given], [result], graph.constants)
    imported = [helper.make_opsetid("", opset)]
    made = helper.make_model(proto, opset_imports=imported, ir_version=helper.find_min_ir_version_for(imported))
    return made, shape
