"""What is counted of layers whose weights are integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from nets import Net

from sift_onnx.analysis.cost import inspect
from sift_onnx.model import Model
from sift_onnx.records.cost import CostReport, LayerCost

WEIGHT = np.arange(-32, 32, dtype=np.int8).reshape(8, 8)
WEIGHT[:, 0] = 0


def only(net: Net) -> LayerCost:
    (layer,) = inspect(net.model()).layers
    return layer


def dequantized(net: Net, weight: Any, zero_point: Any, **attrs: Any) -> str:
    scale = np.full(np.shape(zero_point), 0.5, np.float32)
    inputs = net.constant(weight, "w"), net.constant(scale), net.constant(zero_point, dtype=weight.dtype)
    return str(net.op("DequantizeLinear", *inputs, **attrs))


@pytest.mark.parametrize(
    ("zero_point", "attrs", "nnz"),
    [
        (0, {}, 64 - 8),
        (3, {}, 63),
        ([0] * 7 + [5], {"axis": 0}, 64 - 7),
        (WEIGHT[3], {"axis": 1}, 64 - 8 - 7),
        (np.zeros((8, 2)), {"axis": 1, "block_size": 4}, 64 - 8),
    ],
)
def test_a_weight_that_is_read_through_a_dequantizer_counts_what_is_not_its_zero_point(
    zero_point: Any, attrs: dict[str, int], nnz: int
) -> None:
    net = Net(opset=21)
    x = net.input("x", 5, 8)
    net.output(net.op("MatMul", x, net.op("Transpose", dequantized(net, WEIGHT, zero_point, **attrs)), name="layer"))
    layer = only(net)
    assert (layer.name, layer.node, layer.op, layer.kind, layer.shape) == ("w", "layer", "MatMul", "matmul", (8, 8))
    assert (layer.params, layer.nnz, layer.macs, layer.effective_macs) == (64, nnz, 5 * 64, 5 * nnz)
    assert layer.search_space == 0


def test_weights_that_the_graph_quantizes_are_counted_by_their_own_names() -> None:
    net = Net(opset=21)
    x = net.input("x", 5, 8)
    for name, is_constant_node in (("a", False), ("b", True), ("c", True)):
        floats = WEIGHT.astype(np.float32) / 2
        if is_constant_node:
            weight = net.op("Constant", value=onnx.numpy_helper.from_array(floats), name=name)
        else:
            weight = net.constant(floats, name)
        scale = net.op("Cast", net.constant(np.full(8, 0.5), dtype=np.float64), to=onnx.TensorProto.FLOAT)
        zero = net.op("Cast", net.constant(np.zeros(8), dtype=np.int64), to=onnx.TensorProto.INT8)
        ends = net.constant(-7, dtype=np.int8), net.constant(7, dtype=np.int8)
        q = net.op("Clip", net.op("QuantizeLinear", weight, scale, zero, axis=0), *ends)
        x = net.op("MatMul", x, net.op("Transpose", net.op("DequantizeLinear", q, scale, zero, axis=0)))
    net.output(x)
    layers = inspect(net.model()).layers
    assert [(layer.name, layer.nnz, layer.live_quads) for layer in layers] == [(name, 56, 1.0) for name in "abc"]


def test_quads_are_counted_along_the_input_features() -> None:
    stored = np.zeros((6, 9), np.int8)
    stored[0, 0] = stored[1, 8] = stored[4, 3] = 1
    net = Net(opset=21)
    x = net.op("MatMul", net.input("x", 5, 6), dequantized(net, stored, 0))
    net.output(x)
    # Columns of the stored matrix are outputs: two quads each, and columns 0, 3 and 8 have one that is live.
    assert only(net).live_quads == 3 / 18
    net = Net(opset=21)
    net.output(net.op("MatMul", net.input("x", 5, 9), net.op("Transpose", dequantized(net, stored, 0))))
    assert only(net).live_quads == 3 / 18  # six outputs of three quads
    net = Net()
    x = net.input("x", 1, 8, 4, 4, values=np.ones((1, 8, 4, 4), np.uint8))
    kernel = np.full((2, 8, 3, 3), 128, np.uint8)
    kernel[0, 1:3] = 5
    y = net.op("ConvInteger", x, net.constant(kernel, "k"), net.constant(np.uint8(0)), net.constant(np.uint8(128)))
    net.output(net.op("Cast", y, to=1))
    assert only(net).live_quads == 9 / 36


def test_a_layer_of_integers_is_counted() -> None:
    net = Net()
    x = net.input("x", 1, 4, 8, 8, values=np.ones((1, 4, 8, 8), np.uint8))
    kernel = np.zeros((4, 1, 3, 3), np.int8)
    kernel[0] = 1
    y = net.op("ConvInteger", x, net.constant(kernel, "k"), pads=[1] * 4, strides=[2, 2], group=4, name="conv")
    net.output(net.op("Cast", y, to=1))
    layer = only(net)
    assert (layer.name, layer.kind, layer.params, layer.nnz) == ("k", "depthwise", 36, 9)
    assert (layer.macs, layer.effective_macs) == (36 * 16, 9 * 16)


def test_a_weight_that_several_nodes_multiply_by_is_one_layer() -> None:
    net = Net(opset=21)
    weight = dequantized(net, WEIGHT, 0)
    x = net.op("MatMul", net.input("x", 5, 8), weight, name="first")
    net.output(net.op("MatMul", x, weight, name="second"))
    layer = only(net)
    assert (layer.node, layer.params, layer.macs) == ("first", 64, 2 * 5 * 64)


def test_rows_come_in_the_order_of_the_graph() -> None:
    net = Net(opset=21)
    x = net.dense(net.input("x", 5, 8), 8, 8, name="a")
    x = net.op("MatMul", x, dequantized(net, WEIGHT, 0), name="b")
    net.output(net.dense(x, 8, 2, name="c"))
    report: CostReport = inspect(Model.load(net.model()))
    assert [layer.name for layer in report.layers] == ["a.weight", "w", "c.weight"]


def test_integers_that_no_layer_multiplies_by_are_no_layer() -> None:
    net = Net(opset=21)
    net.output(net.op("Add", net.input("x", 5, 8), dequantized(net, WEIGHT[:1], 0)))
    assert inspect(net.model()).layers == ()


@pytest.mark.parametrize("transposed", [0, 1])
def test_zero_points_of_a_product_go_with_its_outputs(transposed: int) -> None:
    net = Net()
    x = net.input("x", 2, 8, values=np.ones((2, 8), np.uint8))
    weight, points = np.zeros((3, 8), np.int8), np.array([0, 1, 0], np.int8)
    stored = weight if transposed else weight.T.copy()
    scale, zero = net.constant(np.float32(1)), net.constant(np.uint8(0))
    inputs = (x, scale, zero, net.constant(stored, "w"), net.constant(np.ones(3, np.float32)), net.constant(points))
    net.output(net.op("QGemm", *inputs, domain="com.microsoft", transB=transposed, alpha=1.0), 2, 3)
    assert only(net).nnz == 8
