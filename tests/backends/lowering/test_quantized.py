"""Every spelling of a quantized net becomes the same steps, which compute what onnxruntime does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from exact_onnxruntime import exact_onnxruntime
from onnxruntime.quantization import QuantType
from quantized_nets import MICROSOFT, STATIC, Array, PrunedNet, dynamic, inputs_of, integer_net, static
from quantizer_spellings import with_turned_weights, without_bytes_between
from step_reference import run_steps

from sift_onnx.backends.cpu.lower.weights import read_weights
from sift_onnx.backends.lowering.fusion import fuse
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.node_groups import find_node_groups, needed
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import (
    ByteTable,
    Dequantize,
    DynamicQuantize,
    Elementwise,
    Joined,
    PixelCopy,
    Pool,
    Quantize,
    QuantizedConv,
    QuantizedMatmul,
    QuantizedMean,
    Reshaped,
    Sliced,
)
from sift_onnx.model import Model


def lowered(model: onnx.ModelProto) -> list[Step]:
    """All of the model as steps; a node that has none fails the test."""
    graph = GraphView(Model.load(model))
    groups, _ = find_node_groups(graph, lambda matrices: read_weights(matrices, 1))
    kept = needed(groups, graph)
    refused = {graph.nodes[group.nodes[0]].name: group.reason for group in kept if group.step is None}
    assert not refused
    return fuse([group.step for group in kept if group.step], graph.outputs, lambda *_: False)


def wanted(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    return list(exact_onnxruntime(model).run(feeds).values())


def assert_close(steps: Sequence[Step], model: onnx.ModelProto) -> None:
    """Outputs differ by rounding of floats, and one step of the output's scale where they are dequantized."""
    feeds = inputs_of(model, 3, seed=2)
    names = [info.name for info in model.graph.output]
    last = steps[-1].spec
    for name, array in zip(names, wanted(model, feeds), strict=True):
        found = run_steps(steps, feeds, names)[name]
        assert found.shape == array.shape
        step = last.x.scale if isinstance(last, Dequantize) else 0.0
        np.testing.assert_allclose(found, array, rtol=0, atol=1.001 * step + 1e-5 * float(np.abs(array).max()))


def kinds(steps: Sequence[Step]) -> list[type]:
    return [type(step.spec) for step in steps]


@pytest.mark.parametrize("spelling", STATIC)
def test_a_statically_quantized_net_is_one_chain_of_bytes(spelling: str) -> None:
    model = static("images", spelling)
    steps = lowered(model)
    assert [kind for kind in kinds(steps) if kind is not Reshaped] == [
        Quantize, QuantizedConv, Pool, *[QuantizedConv] * 4, QuantizedMean, QuantizedMatmul, Dequantize,
    ]  # fmt: skip
    assert sum(isinstance(step.spec, QuantizedConv) and step.spec.added is not None for step in steps) == 1
    assert_close(steps, model)


@pytest.mark.parametrize("spelling", ["qdq", "qoperator"])
def test_gates_joined_branches_and_resizing_are_on_bytes(spelling: str) -> None:
    model = static("gated", spelling)
    steps = lowered(model)
    floats = {Quantize, Dequantize}
    allowed = {QuantizedConv, ByteTable, Sliced, Joined, PixelCopy, Reshaped}
    assert floats <= set(kinds(steps)) <= floats | allowed
    assert kinds(steps)[0] is Quantize
    assert kinds(steps)[-1] is Dequantize
    assert len([kind for kind in kinds(steps) if kind in floats]) == 2
    assert_close(steps, model)


def test_a_bias_that_is_added_to_the_bytes_of_a_product_joins_it() -> None:
    model = static("tokens", "qdq")
    steps = lowered(model)
    layers = [step.spec for step in steps if isinstance(step.spec, QuantizedMatmul)]
    assert [layer.shifted is not None for layer in layers] == [True, True, False]
    assert_close(steps, model)


def test_a_bias_that_is_added_to_the_floats_of_a_product_joins_it() -> None:
    model = without_bytes_between(static("tokens", "qdq"), "MatMul", "Add")
    steps = lowered(model)
    layers = [step.spec for step in steps if isinstance(step.spec, QuantizedMatmul)]
    assert [(layer.y is not None, layer.shifted) for layer in layers] == [(True, None)] * 3
    assert_close(steps, model)


def test_products_of_transposed_weights_are_the_same_steps() -> None:
    plain = static("tokens", "qdq")
    model = with_turned_weights(plain)
    steps = lowered(model)
    assert kinds(steps) == kinds(lowered(plain))
    assert_close(steps, model)


@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamic_quantization_makes_bytes_within_the_layer(per_channel: bool) -> None:
    model = dynamic("tokens", QuantType.QInt8, per_channel)
    steps = lowered(model)
    assert kinds(steps).count(DynamicQuantize) == kinds(steps).count(QuantizedMatmul) == 3
    assert_close(steps, model)


def test_dynamic_quantization_of_convolutions() -> None:
    model = dynamic("images")
    steps = lowered(model)
    assert kinds(steps).count(DynamicQuantize) == kinds(steps).count(QuantizedConv) + 1
    assert_close(steps, model)


def test_layers_that_read_one_value_share_its_bytes() -> None:
    net = PrunedNet()
    x = net.input("x", 3, 16)
    parts = net.op("DynamicQuantizeLinear", x, outputs=3)
    integers = [net.constant(np.arange(-64, 64, dtype=np.int8).reshape(16, 8) // 3, f"w{i}") for i in range(2)]
    for weight in integers:
        sums = net.op("Cast", net.op("MatMulInteger", parts[0], weight, parts[2]), to=1)
        net.output(net.op("Mul", sums, net.op("Mul", parts[1], net.constant(np.float32(0.02)))))
    steps = lowered(net.model())
    assert kinds(steps) == [DynamicQuantize, QuantizedMatmul, QuantizedMatmul]
    assert_close(steps, net.model())


def test_what_the_optimizer_makes_of_integer_products() -> None:
    net = PrunedNet()
    x = net.input("x", 3, 16)
    weight = net.constant(np.arange(-64, 64, dtype=np.int8).reshape(16, 8), "w")
    scale, zero = net.constant(np.linspace(0.01, 0.02, 8, dtype=np.float32)), net.constant(np.zeros(8, np.int8))
    bias = net.constant(np.linspace(-1, 1, 8, dtype=np.float32))
    x = net.op("DynamicQuantizeMatMul", x, weight, scale, zero, bias, domain=MICROSOFT)
    parts = net.op("DynamicQuantizeLinear", x, outputs=3)
    square = net.constant(np.eye(8, dtype=np.uint8) * 9 + 100, "square")
    net.output(net.op("MatMulIntegerToFloat", parts[0], square, parts[1], net.constant(np.float32(0.1)), parts[2],
                      net.constant(np.uint8(100)), domain=MICROSOFT), 3, 8)  # fmt: skip
    steps = lowered(net.model())
    assert kinds(steps) == [DynamicQuantize, QuantizedMatmul] * 2
    assert [step.spec.weights.nnz for step in steps if isinstance(step.spec, QuantizedMatmul)] == [127, 8]
    assert_close(steps, net.model())


def test_functions_without_a_kernel_are_tables_between_bytes() -> None:
    net = PrunedNet(opset=17)
    point = net.constant(np.float32(0.03)), net.constant(np.uint8(120))
    x = net.input("x", 2, 5, 8, declared=["n", 5, 8])
    x = net.op("DequantizeLinear", net.op("QuantizeLinear", x, *point), *point)
    y = net.op("Erf", net.op("Div", x, net.constant(np.float32(2**0.5))))
    y = net.op("Mul", net.op("Mul", x, net.constant(np.float32(0.5))), net.op("Add", y, net.constant(np.float32(1))))
    y = net.op("DequantizeLinear", net.op("QuantizeLinear", net.op("Exp", net.op("Neg", y)), *point), *point)
    net.output(net.op("DequantizeLinear", net.op("QuantizeLinear", net.op("Abs", y), *point), *point))
    steps = lowered(net.model())
    assert kinds(steps) == [Quantize, ByteTable, Dequantize]
    assert_close(steps, net.model())


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_padding_with_zeros_joins_a_convolution_of_bytes(value: float) -> None:
    net = PrunedNet(opset=17)
    point = net.constant(np.float32(0.03)), net.constant(np.uint8(120))
    x = net.input("x", 2, 4, 5, 5, declared=["n", 4, 5, 5])
    x = net.op("DequantizeLinear", net.op("QuantizeLinear", x, *point), *point)
    x = net.op("Pad", x, net.constant(np.array([0, 0, 0, 1, 0, 0, 1, 2])), net.constant(np.float32(value)))
    x = net.op("DequantizeLinear", net.op("QuantizeLinear", x, *point), *point)
    weight = net.constant(np.arange(-54, 54, dtype=np.int8).reshape(3, 4, 3, 3), "w")
    weight = net.op("DequantizeLinear", weight, net.constant(np.float32(0.01)), net.constant(np.int8(0)))
    x = net.op("Conv", x, weight, pads=[1, 1, 1, 1])
    net.output(net.op("DequantizeLinear", net.op("QuantizeLinear", x, *point), *point))
    steps = lowered(net.model())
    if value:
        # Not what the convolution pads with.
        assert PixelCopy in kinds(steps)
    else:
        assert kinds(steps) == [Quantize, QuantizedConv, Dequantize]
        assert_close(steps, net.model())


def test_a_function_whose_floats_are_read_elsewhere_is_no_table() -> None:
    net = PrunedNet(opset=17)
    point = net.constant(np.float32(0.03)), net.constant(np.uint8(120))
    x = net.op("DequantizeLinear", net.op("QuantizeLinear", net.input("x", 2, 5, 8), *point), *point)
    y = net.op("Erf", x, name="erf")
    net.output(net.op("DequantizeLinear", net.op("QuantizeLinear", y, *point), *point))
    net.output(y)
    graph = GraphView(Model.load(net.model()))
    groups, _ = find_node_groups(graph, lambda matrices: read_weights(matrices, 1))
    assert [group.reason for group in groups if group.step is None] == ["no kernel for this operator"]


def test_layers_of_integers_with_bias_cast_and_scale_are_one_step_each() -> None:
    model = integer_net()
    steps = lowered(model)
    assert kinds(steps).count(QuantizedConv) == 3
    assert kinds(steps).count(QuantizedMatmul) == 1
    # The sum of the residual branch is made where its layer's result is stored.
    assert [step.spec.is_added for step in steps if isinstance(step.spec, QuantizedConv)] == [False, False, True]
    assert Elementwise not in kinds(steps)
    assert_close(steps, model)


def test_the_maximum_of_floats_that_are_quantized_is_one_of_bytes() -> None:
    model = integer_net(is_pooled=True)
    steps = lowered(model)
    (pool,) = (step for step in steps if isinstance(step.spec, Pool))
    assert pool.dtype.is_bytes
    assert_close(steps, model)


def test_weights_may_span_more_than_int8() -> None:
    model = integer_net(zero=20, span=230)
    steps = lowered(model)
    weights = [step.spec.weights for step in steps if isinstance(step.spec, QuantizedMatmul)]
    assert max(int(own.values().max()) for own in weights) > 127
    assert_close(steps, model)
