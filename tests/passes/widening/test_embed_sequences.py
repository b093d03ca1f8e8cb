"""Wide with ``init="embed"`` on layers of transformers: they compute what they did, at exactly their cost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from embedded_models import embedded, kept_for, net_of
from nets import MICROSOFT, Net

from sift_onnx.graphs.constants import array_of

WIDTH, LENGTH = 8, 5


def around_one(net: Net, *shape: int) -> str:
    return net.constant(np.random.default_rng(3).uniform(0.5, 1.5, shape).astype(np.float32))


def bias(net: Net, *shape: int) -> str:
    return net.weight(*shape, fan_in=9)


# Normalizations over features, in all their spellings.


def layer_norm(net: Net, x: str) -> str:
    return net.op("LayerNormalization", x, around_one(net, WIDTH), bias(net, WIDTH), axis=-1, name="norm")


def layer_norm_without_bias(net: Net, x: str) -> str:
    return net.op("LayerNormalization", x, around_one(net, WIDTH), axis=-1, epsilon=0.1)


def centred(net: Net, x: str) -> str:
    return net.op("Sub", x, net.op("ReduceMean", x, net.constant([-1])))


def spelled(net: Net, x: str, square: str, root: str) -> str:
    squares = net.op("Mul", x, x) if square == "Mul" else net.op("Pow", x, net.constant(2.0))
    mean = net.op("Add", net.op("ReduceMean", squares, net.constant([-1])), net.constant(0.1))
    deviation = net.op("Sqrt", mean)
    if root == "Reciprocal":
        return net.op("Mul", x, net.op("Reciprocal", deviation))
    if root == "Pow":
        return net.op("Mul", x, net.op("Pow", mean, net.constant(-0.5)))
    return net.op("Div", x, deviation)


def layer_norm_in_nodes(net: Net, x: str) -> str:
    y = net.op("Mul", spelled(net, centred(net, x), "Pow", "Div"), around_one(net, WIDTH))
    return net.op("Add", y, bias(net, WIDTH))


def layer_norm_with_two_differences(net: Net, x: str) -> str:
    mean = net.op("ReduceMean", x, net.constant([-1]))
    difference, again = net.op("Sub", x, mean), net.op("Sub", x, mean)
    variance = net.op("ReduceMean", net.op("Mul", again, again), net.constant([-1]))
    y = net.op("Div", difference, net.op("Sqrt", net.op("Add", variance, net.constant(0.1))))
    return net.op("Mul", y, around_one(net, WIDTH))


def layer_norm_by_moments(net: Net, x: str) -> str:
    """The variance is the mean of squares less the square of the mean."""
    mean = net.op("ReduceMean", x, net.constant([-1]))
    squares = net.op("ReduceMean", net.op("Mul", x, x), net.constant([-1]))
    variance = net.op("Sub", squares, net.op("Mul", mean, mean))
    deviation = net.op("Sqrt", net.op("Add", variance, net.constant(0.1)))
    return net.op("Mul", net.op("Div", net.op("Sub", x, mean), deviation), around_one(net, WIDTH))


def rms_norm(net: Net, x: str) -> str:
    return net.op("RMSNormalization", x, around_one(net, WIDTH), axis=-1, epsilon=0.1)


def rms_norm_of_onnxruntime(net: Net, x: str) -> str:
    return net.op("SimplifiedLayerNormalization", x, around_one(net, WIDTH), axis=-1, epsilon=0.1)


def rms_norm_in_nodes(net: Net, x: str) -> str:
    return net.op("Mul", spelled(net, x, "Pow", "Reciprocal"), around_one(net, WIDTH))


def rms_norm_scaled_first(net: Net, x: str) -> str:
    return net.op("Mul", around_one(net, WIDTH), spelled(net, x, "Mul", "Pow"))


def rms_norm_without_scale(net: Net, x: str) -> str:
    return spelled(net, x, "Mul", "Div")


def norm_by_the_sum_of_squares(net: Net, x: str) -> str:
    """T5 and Gemma divide by a stored width; zeros add nothing to a sum."""
    squares = net.op("ReduceSumSquare", x, net.constant([-1]))
    mean = net.op("Add", net.op("Div", squares, net.constant(float(WIDTH))), net.constant(0.1))
    return net.op("Mul", net.op("Div", x, net.op("Sqrt", mean)), around_one(net, WIDTH))


def unit_length(net: Net, x: str) -> str:
    return net.op("Div", x, net.op("Add", net.op("ReduceL2", x, net.constant([-1])), net.constant(0.1)))


def lp_norm(net: Net, x: str) -> str:
    return net.op("LpNormalization", x, axis=-1)


NORMS = [
    layer_norm,
    layer_norm_without_bias,
    layer_norm_in_nodes,
    layer_norm_with_two_differences,
    layer_norm_by_moments,
    rms_norm,
    rms_norm_of_onnxruntime,
    rms_norm_in_nodes,
    rms_norm_scaled_first,
    rms_norm_without_scale,
    norm_by_the_sum_of_squares,
    unit_length,
    lp_norm,
]


@pytest.mark.parametrize("sparsity", ["0.5", "0.75", "0.9"])
@pytest.mark.parametrize("norm", NORMS)
def test_a_normalization_over_features_grows(norm: Callable[[Net, str], str], sparsity: str) -> None:
    net = Net(opset=23)
    x = net.op("Add", net.tokens(WIDTH, LENGTH), bias(net, WIDTH))
    net.tokens_end(norm(net, x), WIDTH)
    result = embedded(net.model(), net.feeds, sparsity)
    after = result.model.initializers()["before.weight"]
    assert array_of(after).shape[1] > WIDTH


@pytest.mark.parametrize("norm", NORMS)
def test_a_residual_stream_that_normalizations_read_grows(norm: Callable[[Net, str], str]) -> None:
    net = Net(opset=23)
    x = net.op("Add", net.tokens(WIDTH, LENGTH), net.weight(1, LENGTH, WIDTH, fan_in=1, name="positions"))
    y = net.op("Gelu", net.dense(norm(net, x), WIDTH, 12, name="up"))
    x = net.op("Add", x, net.op("Add", net.dense(y, 12, WIDTH, name="down"), bias(net, WIDTH)))
    net.tokens_end(
        net.op("RMSNormalization" if norm in NORMS[5:] else "LayerNormalization", x, around_one(net, WIDTH)), WIDTH
    )
    result = embedded(net.model(), net.feeds)
    assert array_of(result.model.initializers()["up.weight"]).shape == (16, 24)


@pytest.mark.parametrize("norm", [layer_norm, layer_norm_in_nodes])
def test_a_stream_whose_mean_nobody_sees_is_centred_where_it_is_stored(norm: Callable[[Net, str], str]) -> None:
    net = Net()
    x = net.op("Add", net.tokens(WIDTH, LENGTH), bias(net, WIDTH))
    net.tokens_end(norm(net, x), WIDTH)
    model = embedded(net.model(), net.feeds).model
    assert np.abs(array_of(model.initializers()["before.weight"]).mean(axis=1)).max() < 1e-7
    assert sum(node.op == "ReduceMean" for node in model.graph.nodes) == (0 if norm is layer_norm else 2)


def test_a_stream_whose_mean_others_see_is_centred_by_nodes() -> None:
    net = Net()
    x = net.tokens(WIDTH, LENGTH)
    net.tokens_end(net.op("Add", layer_norm(net, x), x), WIDTH)
    model = embedded(net.model(), net.feeds).model
    assert [node.op for node in model.graph.nodes].count("ReduceMean") == 1
    before = array_of(model.initializers()["before.weight"])[:6, :WIDTH]
    original = net.model().graph.initializer
    stored = next(onnx.numpy_helper.to_array(t) for t in original if t.name == "before.weight")
    np.testing.assert_array_equal(before, stored)


def test_a_normalization_behind_another_is_centred_by_nodes() -> None:
    """As in BERT: the stream is what a normalization gives, whose scale and shift leave it with a mean."""
    net = Net()
    x = layer_norm_without_bias(net, net.tokens(WIDTH, LENGTH))
    y = net.dense(net.op("Gelu", net.dense(x, WIDTH, 12)), 12, WIDTH)
    net.tokens_end(layer_norm(net, net.op("Add", x, y)), WIDTH)
    model = embedded(net.model(), net.feeds).model
    assert array_of(model.initializers()["after.weight"]).shape[0] == 16


def test_a_stored_scale_of_a_branch_stays_a_scale() -> None:
    """As in ConvNeXt and in deep vision transformers."""
    net = Net()
    x = net.tokens(WIDTH, LENGTH)
    y = net.dense(net.op("Gelu", net.dense(layer_norm(net, x), WIDTH, 12)), 12, WIDTH)
    x = net.op("Add", x, net.op("Mul", y, around_one(net, WIDTH)))
    net.tokens_end(layer_norm_without_bias(net, x), WIDTH)
    embedded(net.model(), net.feeds)


def test_channels_that_are_normalized_where_they_lie_last_grow() -> None:
    net = Net()
    x = net.op("Transpose", net.conv(net.images(WIDTH), WIDTH, WIDTH, 3, group=WIDTH), perm=[0, 2, 3, 1])
    x = net.op("Transpose", layer_norm(net, x), perm=[0, 3, 1, 2])
    net.images_end(x, WIDTH)
    embedded(net.model(), net.feeds)


def test_skipped_sums_are_normalized_by_their_root_mean_square() -> None:
    net = Net()
    x = net.tokens(WIDTH, LENGTH)
    y = net.op(
        "SkipSimplifiedLayerNormalization", x, net.dense(x, WIDTH, WIDTH), around_one(net, WIDTH), domain=MICROSOFT
    )
    net.tokens_end(y, WIDTH)
    embedded(net.model(), net.feeds)


def test_skipped_sums_whose_mean_is_subtracted_keep_their_width_by_name() -> None:
    net = Net()
    x = net.tokens(WIDTH, LENGTH)
    parameters = around_one(net, WIDTH), bias(net, WIDTH)
    y = net.op("SkipLayerNormalization", x, net.dense(x, WIDTH, WIDTH), *parameters, domain=MICROSOFT, name="mixer")
    net.tokens_end(y, WIDTH)
    assert "subtracts" in kept_for(embedded(net.model(), net.feeds), "mixer")


# What stands around attention.


def looked_up(net: Net) -> None:
    net.input("x", 1, LENGTH, values=np.array([[3, 1, 4, 1, 5]], dtype=np.int64))
    x = net.op("Gather", net.weight(9, WIDTH, fan_in=1, name="table"), "x")
    net.tokens_end(layer_norm(net, net.dense(x, WIDTH, WIDTH)), WIDTH)


def tied(net: Net) -> None:
    net.input("x", 1, LENGTH, values=np.array([[3, 1, 4, 1, 5]], dtype=np.int64))
    table = net.weight(9, WIDTH, fan_in=1, name="table")
    x = net.op("Gather", table, "x")
    x = net.op("Add", x, net.dense(net.op("Gelu", net.dense(layer_norm(net, x), WIDTH, 12)), 12, WIDTH))
    net.output(net.op("MatMul", layer_norm_without_bias(net, x), net.op("Transpose", table, perm=[1, 0])))


def class_token(net: Net) -> None:
    x = net.op("Concat", net.weight(1, 1, WIDTH, fan_in=1), net.tokens(WIDTH, LENGTH), axis=1)
    x = net.op("Add", x, net.weight(1, LENGTH + 1, WIDTH, fan_in=1))
    x = net.op("Gather", layer_norm(net, x), net.constant(0), axis=1)
    net.tokens_end(net.op("Unsqueeze", x, net.constant([1])), WIDTH)


def number_of_channels(net: Net) -> None:
    x = net.images(WIDTH)
    count = net.op("Cast", net.op("Shape", x, start=1, end=2), to=onnx.TensorProto.FLOAT)
    net.images_end(net.op("Mul", x, count), WIDTH)


@pytest.mark.parametrize("block", [looked_up, tied, class_token, number_of_channels])
def test_a_block_keeps_its_outputs(block: Callable[[Net], None]) -> None:
    net = net_of(block)
    embedded(net.model(), net.feeds)
