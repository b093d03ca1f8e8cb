"""Networks of random pruned weights, and what quantizers make of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu_runtime"))

import numpy as np
import onnx
from generated import detector
from integers import as_integers
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

__all__ = ["NETWORKS", "Net", "quantized"]

_WIDTH, _HEADS, _TOKENS, _LAYERS = 768, 12, 128, 3
Feeds = dict[str, np.ndarray]


class Net:
    """Nodes and pruned constants of a model."""

    def __init__(self, sparsity: float, is_block: bool) -> None:
        self.sparsity, self.is_block = sparsity, is_block
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, values: np.ndarray) -> str:
        """An initializer."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def weight(self, shape: tuple[int, ...], inputs: int, fan_in: int) -> str:
        """Normal values, of which a share is kept: single ones, or blocks of four along the axis ``inputs``."""
        values = self.rng.standard_normal(shape).astype(np.float32)
        sparsity = self.sparsity if shape[inputs] >= 16 else 0.0
        drawn = [-(-size // 4) if self.is_block and axis == inputs else size for axis, size in enumerate(shape)]
        kept = self.rng.random(drawn) >= sparsity
        if self.is_block:
            kept = np.repeat(kept, 4, axis=inputs).take(range(shape[inputs]), axis=inputs)
        return self.constant(values * kept * np.float32((2 / fan_in / (1 - sparsity)) ** 0.5))

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        """A node of one output."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def model(self, shape: list[object], output: str, result: list[object]) -> onnx.ModelProto:
        """From the input ``x`` to ``output``."""
        ends = [helper.make_tensor_value_info(*end) for end in (("x", TensorProto.FLOAT, shape),
                                                                (output, TensorProto.FLOAT, result))]  # fmt: skip
        graph = helper.make_graph(self.nodes, "net", ends[:1], ends[1:], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def resnet50(net: Net) -> onnx.ModelProto:
    """[n, 3, 224, 224] to [n, 1000]."""

    def conv(x: str, inputs: int, outputs: int, kernel: int, stride: int = 1, is_activated: bool = True) -> str:
        bias = net.constant(0.1 * net.rng.standard_normal(outputs).astype(np.float32))
        weight = net.weight((outputs, inputs, kernel, kernel), 1, inputs * kernel**2)
        y = net.op("Conv", x, weight, bias, pads=[kernel // 2] * 4, strides=[stride] * 2)
        return net.op("Relu", y) if is_activated else y

    x = net.op("MaxPool", conv("x", 3, 64, 7, 2), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            same = x if block else conv(x, channels, 4 * width, 1, stride, is_activated=False)
            y = conv(conv(x, channels, width, 1), width, width, 3, stride)
            x = net.op("Relu", net.op("Add", conv(y, width, 4 * width, 1, is_activated=False), same))
            channels = 4 * width
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    head = net.op("Gemm", x, net.weight((channels, 1000), 0, channels), net.constant(np.zeros(1000, np.float32)))
    return net.model(["n", 3, 224, 224], head, ["n", 1000])


def mobilenetv2(net: Net) -> onnx.ModelProto:
    """[n, 3, 224, 224] to [n, 1000]; depthwise layers and the first one keep their weights."""

    def conv(x: str, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
        bias = net.constant(0.1 * net.rng.standard_normal(outputs).astype(np.float32))
        weight = net.weight((outputs, inputs // groups, kernel, kernel), 1, inputs // groups * kernel**2)
        return net.op("Conv", x, weight, bias, pads=[kernel // 2] * 4, strides=[stride] * 2, group=groups)

    def clipped(x: str) -> str:
        return net.op("Clip", x, net.constant(np.float32(0)), net.constant(np.float32(6)))

    x, channels = clipped(conv("x", 3, 32, 3, 2)), 32
    for factor, width, blocks, first_stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for block in range(blocks):
            stride, inner = first_stride if block == 0 else 1, factor * channels
            y = clipped(conv(x, channels, inner, 1)) if factor > 1 else x
            y = conv(clipped(conv(y, inner, inner, 3, stride, inner)), inner, width, 1)
            x = net.op("Add", x, y) if stride == 1 and channels == width else y
            channels = width
    x = net.op("Flatten", net.op("GlobalAveragePool", clipped(conv(x, channels, 1280, 1))))
    head = net.op("Gemm", x, net.weight((1280, 1000), 0, 1280), net.constant(np.zeros(1000, np.float32)))
    return net.model(["n", 3, 224, 224], head, ["n", 1000])


def bert(net: Net) -> onnx.ModelProto:
    """[n, t, 768] to the same."""

    def linear(x: str, inputs: int, outputs: int) -> str:
        bias = net.constant(0.1 * net.rng.standard_normal(outputs).astype(np.float32))
        return net.op("Add", net.op("MatMul", x, net.weight((inputs, outputs), 0, 2 * inputs)), bias)

    def norm(x: str) -> str:
        return net.op(
            "LayerNormalization", x, *(net.constant(make(_WIDTH, np.float32)) for make in (np.ones, np.zeros))
        )

    def heads(x: str, order: list[int]) -> str:
        shape = net.constant(np.array([0, 0, _HEADS, _WIDTH // _HEADS]))
        return net.op("Transpose", net.op("Reshape", x, shape), perm=order)

    x = norm("x")
    for _ in range(_LAYERS):
        q, k, v = (linear(x, _WIDTH, _WIDTH) for _ in range(3))
        scores = net.op("MatMul", heads(q, [0, 2, 1, 3]), heads(k, [0, 2, 3, 1]))
        scores = net.op("Softmax", net.op("Div", scores, net.constant(np.float32(8))), axis=-1)
        y = net.op("Transpose", net.op("MatMul", scores, heads(v, [0, 2, 1, 3])), perm=[0, 2, 1, 3])
        x = norm(net.op("Add", x, linear(net.op("Reshape", y, net.constant(np.array([0, 0, _WIDTH]))), _WIDTH, _WIDTH)))
        y = linear(x, _WIDTH, 4 * _WIDTH)
        erf = net.op("Erf", net.op("Div", y, net.constant(np.float32(2**0.5))))
        half = net.op("Mul", y, net.constant(np.float32(0.5)))
        y = net.op("Mul", half, net.op("Add", erf, net.constant(np.float32(1))))
        x = norm(net.op("Add", x, linear(y, 4 * _WIDTH, _WIDTH)))
    return net.model(["n", "t", _WIDTH], x, ["n", "t", _WIDTH])


def yolov8n(net: Net) -> onnx.ModelProto:
    """[n, 3, 320, 320] to [n, 144, 2100], of YOLOv8n's shape."""
    if net.is_block:
        raise SystemExit("yolov8n is pruned without a pattern")
    return detector(320, net.sparsity)


class _Once(CalibrationDataReader):
    def __init__(self, feeds: Feeds) -> None:
        self._left = iter([feeds])

    def get_next(self) -> Feeds | None:
        return next(self._left, None)


# What makes a network, its input behind the batch, and the spelling that it is quantized to by default.
NETWORKS: dict[str, tuple[Callable[[Net], onnx.ModelProto], tuple[int, ...], str]] = {
    "resnet50": (resnet50, (3, 224, 224), "qdq"),
    "mobilenetv2": (mobilenetv2, (3, 224, 224), "qdq"),
    "bert": (bert, (_TOKENS, _WIDTH), "dynamic"),
    "yolov8n": (yolov8n, (3, 320, 320), "qdq"),
}


def quantized(network: str, sparsity: float, is_block: bool, spelling: str, folder: Path) -> tuple[Path, Path]:
    """Files of the network, as it is and quantized; those that the folder has already are taken as they are.

    Args:
        network: one of :data:`NETWORKS`.
        sparsity: share of the weights that is zero.
        is_block: whether zeros are blocks of four input features.
        spelling: ``qdq`` or ``qoperator`` by onnxruntime's static quantizer, ``dynamic`` by its other one, or
            ``integers``, as Neural Magic's exporter writes it.
        folder: of the files.
    """
    make, shape, _ = NETWORKS[network]
    name = f"{network}-{'block-' if is_block else ''}{sparsity}"
    floats, path = folder / f"{name}.onnx", folder / f"{name}-{spelling}.onnx"
    if path.exists():
        return floats, path
    model = make(Net(sparsity, is_block))
    onnx.save(model, floats)
    feeds = {"x": np.random.default_rng(1).standard_normal((1, *shape)).astype(np.float32)}
    if spelling == "integers":
        onnx.save(as_integers(model, feeds), path)
    elif spelling == "dynamic":
        quantize_dynamic(floats, path, weight_type=QuantType.QInt8)
    else:
        quantize_static(floats, path, _Once(feeds), QuantFormat.QDQ if spelling == "qdq" else QuantFormat.QOperator,
                        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, per_channel=True)  # fmt: skip
    return floats, path
