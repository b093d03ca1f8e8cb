"""Weights that nodes compute from constants are stored, where a transform starts from trained weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from builders import mask_weights
from embedded_models import embedded
from nets import Net, run

from sift_onnx.graphs.constants import array_of
from sift_onnx.model import Model
from sift_onnx.passes import LiftConstants, Parallel, Wide

WIDTH = 6


def weight_norm(net: Net) -> str:
    """``g * v / ||v||``, as both exporters of torch write it."""
    v = net.weight(WIDTH, WIDTH, 3, 3, fan_in=9, name="layer.v")
    norm = net.op("ReduceL2", v, net.constant([1, 2, 3]), keepdims=1)
    return str(net.op("Mul", net.op("Div", v, norm), net.weight(WIDTH, 1, 1, 1, fan_in=1)))


def standardized(net: Net) -> str:
    """As in normalizer-free networks: a normalization in training mode without any data in it."""
    v = net.weight(WIDTH, WIDTH, 3, 3, fan_in=9, name="layer.v")
    flat = net.op("Reshape", v, net.constant([1, WIDTH, -1]))
    ones = [net.constant(np.full(WIDTH, value, np.float32)) for value in (0.2, 0.0, 0.0, 1.0)]
    flat = net.op("BatchNormalization", flat, *ones, training_mode=1, outputs=3)[0]
    return str(net.op("Reshape", flat, net.constant([WIDTH, WIDTH, 3, 3])))


def reordered(net: Net) -> str:
    v = net.weight(WIDTH, WIDTH, 3, 3, fan_in=9, name="layer.v")
    first, second = net.op("Split", v, net.constant([2, 4]), axis=0, outputs=2)
    return str(net.op("Concat", second, first, axis=0))


def network(kernel: Callable[[Net], str]) -> Net:
    net = Net()
    net.images_end(net.op("Conv", net.images(WIDTH), kernel(net), pads=[1] * 4, name="layer"), WIDTH)
    return net


def assert_same_outputs(net: Net, changed: Model) -> None:
    proto = net.model()
    expected, found = run(proto, net.feeds), run(changed.to_proto(), net.feeds)
    for output in proto.graph.output:
        np.testing.assert_allclose(found[output.name], expected[output.name], rtol=1e-4, atol=1e-5)


KERNELS = [weight_norm, standardized, reordered]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_computed_weight_grows(kernel: Callable[[Net], str]) -> None:
    net = network(kernel)
    result = embedded(net.model(), net.feeds)
    assert array_of(result.model.initializers()["layer.v.computed"]).shape == (12, 12, 3, 3)


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_computed_it_is_gone(kernel: Callable[[Net], str]) -> None:
    net = network(kernel)
    result = LiftConstants(computed=True)(net.model())
    assert result.report == {"lifted": ["layer.v.computed"]}
    assert {node.op for node in result.model.graph.nodes} <= {"Conv", "Relu"}
    assert_same_outputs(net, result.model)
    assert not LiftConstants(computed=True)(result.model).changed


def test_branches_take_it_over() -> None:
    net = network(weight_norm)
    result = Parallel("0.5", init="embed", activation="none")(net.model())
    assert [layer["status"] for layer in result.report["layers"] if "layer.v" in layer["name"]] == ["sparse"]
    assert_same_outputs(net, result.model)


def test_a_model_that_starts_afresh_keeps_what_computes_its_weights() -> None:
    ops = [node.op for node in Wide("0.75")(network(weight_norm).model()).model.graph.nodes]
    assert "ReduceL2" in ops
    assert not LiftConstants()(network(weight_norm).model()).changed


def test_a_masked_weight_stays_what_it_is() -> None:
    model = mask_weights(Model.load(network(weight_norm).model()), names=["layer.v"])
    assert not LiftConstants(computed=True)(model).changed


def test_quantized_weights_stay_quantized() -> None:
    net = Net()
    stored = net.constant(np.ones((WIDTH, WIDTH, 1, 1), np.int8), name="layer.v")
    weight = net.op("Mul", net.op("DequantizeLinear", stored, net.constant(0.1)), net.constant(2.0))
    net.images_end(net.op("Conv", net.images(WIDTH), weight), WIDTH)
    assert not LiftConstants(computed=True)(net.model()).changed


def test_positions_times_frequencies_are_no_layer() -> None:
    """As rotary embeddings are written: an outer product with a column of computed frequencies."""
    net = Net()
    positions = net.op("Cast", net.input("x", 1, 1, 5), to=onnx.TensorProto.FLOAT)
    frequencies = net.op("Pow", net.constant(100.0), net.constant(np.linspace(-1, 0, 4).reshape(1, 4, 1)))
    net.output(net.op("Cos", net.op("MatMul", frequencies, positions)))
    assert not LiftConstants(computed=True)(net.model()).changed
