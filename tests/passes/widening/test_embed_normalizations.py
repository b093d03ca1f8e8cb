"""Wide with ``init="embed"``: normalizations over features, and the streams that they read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from embedded_models import embedded
from nets import MICROSOFT, Net
from normalized_nets import (
    LENGTH,
    NORMS,
    WIDTH,
    around_one,
    bias,
    layer_norm,
    layer_norm_in_nodes,
    layer_norm_without_bias,
)

from sift_onnx.graphs.constants import array_of


@pytest.mark.parametrize("sparsity", ["0.5", "0.75", pytest.param("0.9", marks=pytest.mark.slow)])
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


@pytest.mark.parametrize("reads_mean", [False, True])
def test_what_has_grown_grows_again_without_further_nodes(reads_mean: bool) -> None:
    net = Net()
    x = net.op("Add", net.tokens(WIDTH, LENGTH), bias(net, WIDTH))
    y = layer_norm(net, x)
    net.tokens_end(net.op("Add", y, x) if reads_mean else y, WIDTH)
    first = embedded(net.model(), net.feeds, "0.5")
    again = embedded(first.model.to_proto(), net.feeds, "0.5", seed=1)
    assert again.report["centred"] == []
    ops = [[node.op for node in r.model.graph.nodes if node.op != "Constant"] for r in (first, again)]
    assert ops[0] == ops[1]
    for name, constant in first.model.masked().items():
        assert constant.nnz == again.model.masked()[name].nnz


def test_the_report_names_what_nodes_centre() -> None:
    net = Net()
    x = net.tokens(WIDTH, LENGTH)
    net.tokens_end(net.op("Add", layer_norm(net, x), x), WIDTH)
    assert embedded(net.model(), net.feeds).report["centred"] == ["before"]


def test_a_mean_over_channels_and_pixels_is_subtracted_right_before_the_normalization() -> None:
    """The mean over the channels of each pixel is seen: what writes to the stream cannot be centred."""
    net = Net()
    scale, shift = around_one(net, 6, 8, 8), bias(net, 6, 8, 8)
    x = net.op("LayerNormalization", net.images(6), scale, shift, axis=1, epsilon=0.1)
    net.images_end(x, 6)
    assert embedded(net.model(), net.feeds).report["centred"] == ["before"]


def test_two_normalizations_of_a_stream_subtract_each_its_own_mean() -> None:
    net = Net(opset=21)
    x = net.images(6)
    by_pixel = net.op("Sub", x, net.op("ReduceMean", x, net.constant([1])))
    together = net.op("GroupNormalization", x, around_one(net, 6), bias(net, 6), num_groups=1, epsilon=0.1)
    net.images_end(net.op("Add", by_pixel, together), 6)
    first = embedded(net.model(), net.feeds)
    assert first.report["centred"] == ["before"]
    assert array_of(first.model.initializers()["after.weight"]).shape[1] == 12
    assert embedded(first.model.to_proto(), net.feeds, "0.5", seed=1).report["centred"] == []


def test_a_normalization_behind_another_is_centred_by_nodes() -> None:
    """As in BERT: the stream is what a normalization gives, whose scale and shift leave it with a mean."""
    net = Net()
    x = layer_norm_without_bias(net, net.tokens(WIDTH, LENGTH))
    y = net.dense(net.op("Gelu", net.dense(x, WIDTH, 12)), 12, WIDTH)
    net.tokens_end(layer_norm(net, net.op("Add", x, y)), WIDTH)
    model = embedded(net.model(), net.feeds).model
    assert array_of(model.initializers()["after.weight"]).shape[0] == 16


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_stored_scale_of_a_branch_is_multiplied_into_what_it_scales(has_bias: bool) -> None:
    """As in deep vision transformers; what stays behind is one number for all features."""
    net = Net()
    x = net.tokens(WIDTH, LENGTH)
    y = net.dense(net.op("Gelu", net.dense(layer_norm(net, x), WIDTH, 12)), 12, WIDTH, name="down")
    y = net.op("Add", bias(net, WIDTH), y) if has_bias else y
    x = net.op("Add", x, net.op("Mul", y, around_one(net, WIDTH), name="branch"))
    net.tokens_end(layer_norm_without_bias(net, x), WIDTH)
    result = embedded(net.model(), net.feeds)
    assert result.report["centred"] == []
    scale = next(node for node in result.model.graph.nodes if node.name == "branch").inputs[1]
    assert len(set(array_of(scale)[:WIDTH].tolist())) == 1


def test_a_stream_that_is_averaged_over_positions_is_centred_where_it_is_stored() -> None:
    net = Net()
    positions = bias(net, 1, LENGTH, WIDTH)
    x = net.op("Add", net.op("Add", net.tokens(WIDTH, LENGTH), positions), positions)
    x = net.op("Add", x, net.dense(net.op("Gelu", net.dense(layer_norm(net, x), WIDTH, 12)), 12, WIDTH))
    x = net.op("ReduceMean", x, net.constant([1]))
    net.tokens_end(layer_norm_without_bias(net, x), WIDTH)
    assert embedded(net.model(), net.feeds).report["centred"] == []


def test_a_scale_that_several_branches_share_stays_as_it_is() -> None:
    net = Net()
    x, scale = net.tokens(WIDTH, LENGTH), around_one(net, WIDTH)
    for _ in range(2):
        y = net.dense(net.op("Gelu", net.dense(layer_norm_without_bias(net, x), WIDTH, 12)), 12, WIDTH)
        x = net.op("Add", x, net.op("Mul", y, scale))
    net.tokens_end(layer_norm_without_bias(net, x), WIDTH)
    assert len(embedded(net.model(), net.feeds).report["centred"]) == 2


def test_channels_that_are_normalized_where_they_lie_last_grow() -> None:
    net = Net()
    x = net.op("Transpose", net.conv(net.images(WIDTH), WIDTH, WIDTH, 3, group=WIDTH), perm=[0, 2, 3, 1])
    x = net.op("Transpose", layer_norm(net, x), perm=[0, 3, 1, 2])
    net.images_end(x, WIDTH)
    embedded(net.model(), net.feeds)


@pytest.mark.parametrize("kind", ["SkipSimplifiedLayerNormalization", "SkipLayerNormalization"])
@pytest.mark.parametrize("opset", [16, 20])
def test_skipped_sums_of_onnxruntime_are_normalized(kind: str, opset: int) -> None:
    """The sum is an output as well, which goes on as the residual stream."""
    net = Net(opset)
    x, shifts = net.tokens(WIDTH, LENGTH), () if "Simplified" in kind else (bias(net, WIDTH),)
    for i in range(2):
        h = net.op("FastGelu", net.dense(x, WIDTH, 12), bias(net, 12), domain=MICROSOFT)
        operands = x, net.dense(h, 12, WIDTH), around_one(net, WIDTH), *shifts
        y, _, _, x = net.op(kind, *operands, domain=MICROSOFT, outputs=4, epsilon=0.1, name=f"mixer{i}")
    net.tokens_end(y, WIDTH)
    result = embedded(net.model(), net.feeds)
    assert array_of(result.model.initializers()["after.weight"]).shape[0] == 2 * WIDTH
