"""Models of one operator after another, for ``fit_costs.py``: small enough to be made in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["LAYERS", "OTHERS", "Operator", "attention_model", "chain", "quantized_chain", "turns"]

_OPSET = 20
_HEADS, _DEPTH = 8, 64
_ANCHOR_DENSITY = 0.1
_TURNS_SHAPE = (16, 256)


@dataclass
class _Builder:
    """Nodes and constants of a model; weights are normal with a share of ``density`` active."""

    density: float = 1.0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def constant(self, values: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def weights(self, *shape: int) -> str:
        values = self.rng.standard_normal(shape, np.float32) / np.float32(np.prod(shape[1:]) ** 0.5)
        return self.constant(values * (self.rng.random(shape) < self.density))

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        names = [f"v{len(self.nodes)}" + "_" * i for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0]

    def model(self, output: str, shape: tuple[int, ...], result: tuple[int, ...]) -> onnx.ModelProto:
        """From the input ``x`` to ``output``."""
        ends = [helper.make_tensor_value_info(*end) for end in (("x", TensorProto.FLOAT, shape),
                                                                (output, TensorProto.FLOAT, result))]  # fmt: skip
        graph = helper.make_graph(self.nodes, "chain", ends[:1], ends[1:], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)


def _product(b: _Builder, x: str, shape: tuple[int, ...]) -> str:
    return b.op("MatMul", x, b.weights(shape[-1], shape[-1]))


def _pointwise(b: _Builder, x: str, shape: tuple[int, ...]) -> str:
    return b.op("Conv", x, b.weights(shape[1], shape[1], 1, 1))


def _window(b: _Builder, x: str, shape: tuple[int, ...]) -> str:
    return b.op("Conv", x, b.weights(shape[1], shape[1], 3, 3), pads=[1] * 4)


def _depthwise(b: _Builder, x: str, shape: tuple[int, ...]) -> str:
    weights = b.constant(b.rng.standard_normal((shape[1], 1, 3, 3), np.float32))
    return b.op("Conv", x, weights, pads=[1] * 4, group=shape[1])


def _normalization(b: _Builder, x: str, shape: tuple[int, ...]) -> str:
    scale = b.constant(np.ones(shape[-1], np.float32))
    return b.op("LayerNormalization", x, scale, axis=-1)


def _add(b: _Builder, x: str, shape: tuple[int, ...]) -> str:
    return b.op("Add", x, "x")


def _activation(b: _Builder, x: str, shape: tuple[int, ...]) -> str:
    return b.op("Gelu", x)


def _pool(b: _Builder, x: str, shape: tuple[int, ...]) -> str:
    return b.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4)


Operator = Callable[[_Builder, str, tuple[int, ...]], str]
# By kind, as `backends/cpu/lower/costs.py` names them; each keeps its operand's shape.
LAYERS: dict[str, Operator] = {"product": _product, "pointwise": _pointwise, "window": _window, "depthwise": _depthwise}
OTHERS: dict[str, Operator] = {
    "elementwise": _add,
    "activation": _activation,
    "normalization": _normalization,
    "pool": _pool,
}


def chain(
    operator: Operator, shape: tuple[int, ...], count: int, density: float = 1.0, anchor: Operator | None = None
) -> onnx.ModelProto:
    """``count`` operators, each after the other.

    Args:
        operator: of ``LAYERS`` or ``OTHERS``.
        shape: of every tensor.
        count: how many.
        density: of weights.
        anchor: a sparse layer that comes first: without one, nothing is left to the kernels.
    """
    builder, x = _Builder(_ANCHOR_DENSITY), "x"
    if anchor is not None:
        x = anchor(builder, x, shape)
    builder.density = density
    for _ in range(count):
        x = operator(builder, x, shape)
    return builder.model(x, shape, shape)


def quantized_chain(shape: tuple[int, ...], count: int, density: float = 1.0) -> onnx.ModelProto:
    """``count`` convolutions of bytes with 1x1 windows; ``density`` is the share of their quads that are not zero."""
    builder = _Builder()
    channels = shape[1]
    point = builder.constant(np.array(0.05, np.float32)), builder.constant(np.array(128, np.uint8))
    zero, scale = builder.constant(np.array(0, np.int8)), builder.constant(np.array(0.002, np.float32))
    x = builder.op("QuantizeLinear", "x", *point)
    for _ in range(count):
        live = np.repeat(builder.rng.random((channels, -(-channels // 4))) < density, 4, axis=1)[:, :channels]
        weights = builder.rng.integers(1, 128, (channels, channels), np.int8) * live
        kernel = builder.constant(weights.reshape(channels, channels, 1, 1).astype(np.int8))
        x = builder.op("QLinearConv", x, *point, kernel, scale, zero, *point)
    return builder.model(builder.op("DequantizeLinear", x, *point), shape, shape)


def turns(count: int) -> onnx.ModelProto:
    """Sparse products, and between them an operator that kernels do not have."""
    builder, x = _Builder(_ANCHOR_DENSITY), "x"
    for _ in range(count):
        x = _product(builder, builder.op("Elu", x), _TURNS_SHAPE)
    return builder.model(x, _TURNS_SHAPE, _TURNS_SHAPE)


def attention_model(tokens: int, anchored: bool) -> onnx.ModelProto:
    """Self-attention of 8 heads, of queries, keys and values that are the input; behind a sparse product, or not.

    Args:
        tokens: of the only sequence.
        anchored: whether there is that product.
    """
    builder, x, width = _Builder(_ANCHOR_DENSITY), "x", _HEADS * _DEPTH
    if anchored:
        x = builder.op("MatMul", x, builder.weights(3 * width, 3 * width))
    builder.nodes.append(helper.make_node("Split", [x], ["q", "k", "v"], axis=-1, num_outputs=3))
    heads = builder.constant(np.array([0, 0, _HEADS, _DEPTH], np.int64))
    apart = [builder.op("Reshape", name, heads) for name in "qkv"]
    turned = [builder.op("Transpose", name, perm=perm) for name, perm in
              zip(apart, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)]  # fmt: skip
    scale = builder.constant(np.float32(_DEPTH**-0.5))
    scores = builder.op("Mul", builder.op("MatMul", *turned[:2]), scale)
    mixed = builder.op("MatMul", builder.op("Softmax", scores, axis=-1), turned[2])
    joined = builder.op("Transpose", mixed, perm=[0, 2, 1, 3])
    out = builder.op("Reshape", joined, builder.constant(np.array([0, 0, width], np.int64)))
    return builder.model(out, (1, tokens, 3 * width), (1, tokens, width))
