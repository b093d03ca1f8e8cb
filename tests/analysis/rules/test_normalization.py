"""Normalizations: their parameters follow the axes that they belong to."""

from __future__ import annotations

import numpy as np
import pytest
from nets import Net, widen

WIDTHS = [("0.5", 11), ("0.75", 16), ("0.9", 25)]


@pytest.mark.parametrize(("sparsity", "width"), WIDTHS)
def test_a_batch_norm_has_parameters_and_statistics_for_each_channel(net: Net, sparsity: str, width: int) -> None:
    h = net.images(8)
    rng = np.random.default_rng(3)
    values = {"gamma": rng.uniform(1, 2, 8), "beta": rng.normal(size=8), "mean": rng.normal(size=8)}
    parameters = [net.constant(v, name) for name, v in values.items()]
    h = net.op("BatchNormalization", h, *parameters, net.constant(rng.uniform(1, 2, 8), "var"), name="norm")
    net.images_end(h, 8)
    wide = widen(net, sparsity)
    for name, neutral in (("gamma", 1), ("beta", 0), ("mean", 0), ("var", 1)):
        assert wide.initializers[name].tolist() == [neutral] * width


def test_a_batch_norm_over_features_of_a_matrix(net: Net) -> None:
    h = net.op("Reshape", net.tokens(8), net.constant([5, 8]))
    parameters = [net.constant(np.full(8, v), name) for name, v in zip("gbmv", (1.0, 0.0, 0.0, 1.0), strict=True)]
    net.tokens_end(net.op("BatchNormalization", h, *parameters, name="norm"), 8)
    assert widen(net).shape("norm") == (5, 16)


@pytest.mark.parametrize(("sparsity", "width"), WIDTHS)
def test_an_instance_norm_has_parameters_for_each_channel(net: Net, sparsity: str, width: int) -> None:
    inputs = net.images(8), net.constant(np.ones(8), "scale"), net.constant(np.zeros(8), "bias")
    net.images_end(net.op("InstanceNormalization", *inputs, name="norm"), 8)
    assert widen(net, sparsity).shape("scale") == (width,)


@pytest.mark.parametrize(("sparsity", "width"), [("0.5", 12), ("0.75", 16), ("0.9", 24)])
def test_a_group_norm_with_parameters_for_each_channel(sparsity: str, width: int) -> None:
    net = Net(21)
    inputs = net.images(8), net.constant(np.ones(8), "scale"), net.constant(np.zeros(8), "bias")
    net.images_end(net.op("GroupNormalization", *inputs, name="norm", num_groups=4), 8)
    wide = widen(net, sparsity)
    assert wide.shape("scale") == (width,)
    assert wide.shape("norm")[1] == width
    assert wide.attr("norm", "num_groups") == 4


@pytest.mark.parametrize(("sparsity", "width"), [("0.5", 12), ("0.75", 16), ("0.9", 24)])
def test_a_group_norm_with_parameters_for_each_group(sparsity: str, width: int) -> None:
    net = Net(18)
    inputs = net.images(8), net.constant(np.ones(4), "scale"), net.constant(np.zeros(4), "bias")
    net.images_end(net.op("GroupNormalization", *inputs, name="norm", num_groups=4), 8)
    wide = widen(net, sparsity)
    assert wide.shape("scale") == (4,)
    assert wide.shape("norm")[1] == width


@pytest.mark.parametrize("opset", [18, 21])
def test_a_group_norm_with_a_group_for_each_channel_gets_more_groups(opset: int) -> None:
    net = Net(opset)
    inputs = net.images(8), net.constant(np.ones(8), "scale"), net.constant(np.zeros(8), "bias")
    net.images_end(net.op("GroupNormalization", *inputs, name="norm", num_groups=8), 8)
    wide = widen(net, "0.5")
    assert wide.shape("norm")[1] == 11
    assert wide.shape("scale") == (11,)
    assert wide.attr("norm", "num_groups") == 11


@pytest.mark.parametrize("shape", [(1, 4, -1), (1, 4, 128)])
def test_a_group_norm_spelled_as_an_instance_norm_of_groups(net: Net, shape: tuple[int, ...]) -> None:
    """Exporters below opset 18: Reshape, InstanceNormalization, Reshape, Mul, Add."""
    h = net.op("Reshape", net.images(8), net.constant(shape))
    ones, zeros = net.constant(np.ones(4), "ones"), net.constant(np.zeros(4), "zeros")
    h = net.op("InstanceNormalization", h, ones, zeros, name="inner")
    h = net.op("Reshape", h, net.constant([1, 8, 8, 8]))
    h = net.op("Mul", h, net.constant(np.random.default_rng(0).uniform(1, 2, (8, 1, 1)), "gamma"))
    h = net.op("Add", h, net.constant(np.zeros((8, 1, 1)), "beta"), name="norm")
    net.images_end(h, 8)
    wide = widen(net, "0.9")
    assert wide.shape("inner") == (1, 4, 384)
    assert wide.shape("gamma") == (24, 1, 1)
    assert wide.shape("ones") == (4,)


@pytest.mark.parametrize(("sparsity", "width"), WIDTHS)
@pytest.mark.parametrize("kind", ["LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"])
def test_a_layer_norm_has_parameters_for_each_feature(kind: str, sparsity: str, width: int) -> None:
    net = Net(23)
    parameters = [net.constant(np.ones(8), "scale")]
    if kind == "LayerNormalization":
        parameters.append(net.constant(np.zeros(8), "bias"))
    net.tokens_end(net.op(kind, net.tokens(8), *parameters, name="norm", axis=-1), 8)
    wide = widen(net, sparsity)
    assert [wide.shape(name) for name in parameters] == [(width,)] * len(parameters)
    assert wide.shape("norm") == (1, 5, width)


def test_a_layer_norm_over_several_axes(net: Net) -> None:
    inputs = net.images(8), net.constant(np.ones((8, 8, 8)), "scale"), net.constant(np.zeros((8, 1, 1)), "bias")
    net.images_end(net.op("LayerNormalization", *inputs, name="norm", axis=1), 8)
    wide = widen(net)
    assert wide.shape("scale") == (16, 8, 8)
    assert wide.shape("bias") == (16, 1, 1)


def test_statistics_of_a_layer_norm_have_the_axes_in_front(net: Net) -> None:
    h = net.tokens(8)
    inputs = net.constant(np.ones(8), "scale"), net.constant(np.zeros(8), "bias")
    norm, mean, deviation = net.op("LayerNormalization", h, *inputs, name="norm", outputs=3)
    net.tokens_end(net.op("Add", net.op("Div", h, net.op("Add", deviation, net.op("Abs", mean))), norm), 8)
    wide = widen(net)
    assert wide.shape(mean) == wide.shape(deviation) == (1, 5, 1)


@pytest.mark.parametrize("rms", [False, True])
def test_a_layer_norm_spelled_out_in_primitives(net: Net, rms: bool) -> None:
    h = net.tokens(8)
    last = net.constant([-1])
    centred = h if rms else net.op("Sub", h, net.op("ReduceMean", h, last), name="centred")
    variance = net.op("ReduceMean", net.op("Pow", centred, net.constant(2.0)), last, name="variance")
    h = net.op("Div", centred, net.op("Sqrt", net.op("Add", variance, net.constant(1e-5))))
    h = net.op("Mul", h, net.constant(np.random.default_rng(0).uniform(1, 2, 8), "gamma"), name="norm")
    net.tokens_end(h, 8)
    wide = widen(net, "0.9")
    assert wide.shape("gamma") == (25,)
    assert wide.shape("variance") == (1, 5, 1)


ALONG_AN_AXIS = {
    "Softmax": {"axis": -1},
    "LogSoftmax": {"axis": -1},
    "Hardmax": {"axis": -1},
    "LpNormalization": {"axis": -1},
    "MeanVarianceNormalization": {"axes": [1, 2]},
    "LRN": {"size": 3},
}


@pytest.mark.parametrize("kind", ALONG_AN_AXIS)
def test_what_is_computed_along_an_axis_lets_it_grow(net: Net, kind: str) -> None:
    if kind == "LRN":
        net.images_end(net.op(kind, net.images(8), name="op", **ALONG_AN_AXIS[kind]), 8)
    else:
        net.tokens_end(net.op(kind, net.tokens(8), name="op", **ALONG_AN_AXIS[kind]), 8)
    wide = widen(net)
    assert wide.shape("op")[1 if kind == "LRN" else 2] == 16


def test_a_cumulative_sum_lets_features_grow(net: Net) -> None:
    net.tokens_end(net.op("CumSum", net.tokens(8), net.constant(1), name="op"), 8)
    assert widen(net).shape("op") == (1, 5, 16)
