"""Convolutions: what grows in their channels, groups and kernels."""

from __future__ import annotations

import pytest
from nets import Net, widen


@pytest.mark.parametrize(("sparsity", "width"), [("0.5", 11), ("0.75", 16), ("0.9", 25)])
def test_channels_grow_and_the_kernel_stays(net: Net, sparsity: str, width: int) -> None:
    h = net.images(8)
    h = net.conv(h, 8, 8, 3, name="conv")
    net.images_end(h, 8)
    wide = widen(net, sparsity)
    assert wide.shape("conv.weight") == (width, width, 3, 3)
    assert wide.shape("conv") == (1, width, 8, 8)
    assert wide.status("conv.weight") == "sparse"


@pytest.mark.parametrize(("sparsity", "inputs", "outputs"), [("0.5", 12, 16), ("0.75", 16, 24), ("0.9", 26, 38)])
def test_a_grouped_convolution_keeps_its_groups_and_each_gets_wider(
    net: Net, sparsity: str, inputs: int, outputs: int
) -> None:
    h = net.images(8)
    h = net.conv(h, 8, 12, 3, name="grouped", group=2)
    net.images_end(h, 12)
    wide = widen(net, sparsity)
    assert wide.attr("grouped", "group") == 2
    assert wide.shape("grouped.weight") == (outputs, inputs // 2, 3, 3)


@pytest.mark.parametrize(("sparsity", "width"), [("0.5", 11), ("0.75", 16), ("0.9", 25)])
def test_a_depthwise_convolution_gets_more_groups(net: Net, sparsity: str, width: int) -> None:
    h = net.images(8)
    h = net.conv(h, 8, 8, 3, name="depthwise", group=8)
    net.images_end(h, 8)
    wide = widen(net, sparsity)
    assert wide.attr("depthwise", "group") == width
    assert wide.shape("depthwise.weight") == (width, 1, 3, 3)
    # As many non-zeros as before among more weights.
    (layer,) = [entry for entry in wide.report["layers"] if entry["kind"] == "depthwise"]
    assert layer["nnz"] == 72


@pytest.mark.parametrize(("sparsity", "width"), [("0.5", 8), ("0.75", 12), ("0.9", 19)])
def test_a_depthwise_multiplier_stays(net: Net, sparsity: str, width: int) -> None:
    h = net.images(6)
    h = net.conv(h, 6, 18, 3, name="depthwise", group=6)
    net.images_end(h, 18)
    wide = widen(net, sparsity)
    assert wide.attr("depthwise", "group") == width
    assert wide.shape("depthwise.weight") == (3 * width, 1, 3, 3)
    assert wide.shape("after.weight") == (wide.shape("after")[1], 3 * width, 1, 1)


def test_a_channel_shuffle_between_grouped_convolutions(net: Net) -> None:
    h = net.images(8)
    h = net.conv(h, 8, 8, name="first", group=2)
    h = net.op("Reshape", h, net.constant([1, 2, 4, 8, 8]), name="split")
    h = net.op("Transpose", h, perm=[0, 2, 1, 3, 4])
    h = net.op("Reshape", h, net.constant([1, 8, 8, 8]), name="shuffled")
    h = net.conv(h, 8, 8, 3, name="second", group=8)
    net.images_end(h, 8)
    wide = widen(net, "0.9")
    assert wide.shape("split") == (1, 2, 13, 8, 8)
    assert wide.attr("first", "group") == 2
    assert wide.attr("second", "group") == 26


def test_a_bias_follows_the_channels(net: Net) -> None:
    h = net.images(8)
    h = net.op("Conv", h, net.weight(10, 8, 1, 1, name="w"), net.weight(10, name="b"), name="conv")
    net.images_end(h, 10)
    assert widen(net).shape("b") == (20,)


@pytest.mark.parametrize(
    ("group", "sparsity", "inputs", "outputs"),
    [(1, "0.5", 11, 17), (1, "0.75", 16, 24), (1, "0.9", 25, 38), (2, "0.5", 12, 16), (2, "0.9", 26, 38)],
)
def test_a_transposed_convolution_stores_its_inputs_first(
    net: Net, group: int, sparsity: str, inputs: int, outputs: int
) -> None:
    h = net.images(8)
    weight = net.weight(8, 12 // group, 2, 2, name="up.weight", fan_in=8)
    h = net.op("ConvTranspose", h, weight, net.weight(12, name="up.bias"), name="up", group=group, strides=[2, 2])
    net.images_end(h, 12)
    wide = widen(net, sparsity)
    assert wide.shape("up.weight") == (inputs, outputs // group, 2, 2)
    assert wide.shape("up.bias") == (outputs,)
    assert wide.shape("up") == (1, outputs, 16, 16)


@pytest.mark.parametrize("multiplier", [1, 2])
def test_a_transposed_depthwise_convolution_gets_more_groups(net: Net, multiplier: int) -> None:
    h = net.images(8)
    weight = net.weight(8, multiplier, 2, 2, name="up.weight", fan_in=1)
    h = net.op("ConvTranspose", h, weight, name="up", group=8, strides=[2, 2])
    net.images_end(h, 8 * multiplier)
    wide = widen(net, "0.5")
    assert wide.attr("up", "group") == 11
    assert wide.shape("up.weight") == (11, multiplier, 2, 2)
    assert wide.shape("after.weight")[1] == 11 * multiplier


def test_a_convolution_in_one_dimension(net: Net) -> None:
    stem = net.op("Conv", net.input("x", 1, 3, 16), net.weight(6, 3, 3, name="stem.weight"), name="stem")
    h = net.op("Conv", stem, net.weight(8, 6, 5, name="w"), name="conv", strides=[2], dilations=[2], pads=[1, 2])
    net.output(net.op("Conv", h, net.weight(2, 8, 1), name="head"))
    assert widen(net).shape("w") == (16, 12, 5)


def test_a_kernel_that_is_computed_from_stored_ones_grows(net: Net) -> None:
    h = net.images(8)
    kernel = net.op(
        "Mul", net.weight(8, 8, 1, 1, name="direction"), net.weight(8, 1, 1, 1, name="magnitude"), name="conv.weight"
    )
    h = net.op("Conv", h, kernel, name="conv")
    h = net.conv(h, 8, 10, name="free")
    h = net.conv(h, 10, 8, name="free2")
    net.images_end(h, 8)
    wide = widen(net)
    assert wide.shape("conv.weight") == (16, 16, 1, 1)
    assert wide.shape("free") == (1, 20, 8, 8)


def test_features_that_lie_along_the_pixels_pass_a_pointwise_convolution(net: Net) -> None:
    """MLP-Mixer with Conv1d over tokens: the channels of the convolution are tokens, its pixels are features."""
    h = net.tokens(8, length=5)
    mixed = net.op("Conv", h, net.weight(7, 5, 1, name="tokens.weight", fan_in=5), name="up")
    mixed = net.op("Conv", net.op("Relu", mixed), net.weight(5, 7, 1, name="tokens2.weight", fan_in=7), name="down")
    net.tokens_end(net.op("Add", h, mixed, name="sum"), 8)
    wide = widen(net)
    assert wide.shape("sum") == (1, 5, 16)
    assert wide.shape("up") == (1, 14, 16)


def test_features_that_a_kernel_slides_over_stay(net: Net) -> None:
    h = net.tokens(8, length=5)
    mixed = net.op("Conv", h, net.weight(5, 5, 3, name="w", fan_in=5), name="conv", pads=[1, 1])
    mixed = net.op("Add", h, mixed, name="sum")
    net.tokens_end(net.dense(net.op("Relu", net.dense(mixed, 8, 12, name="up")), 12, 8, name="down"), 8)
    wide = widen(net)
    assert wide.shape("conv") == (1, 5, 8)
    assert wide.shape("up") == (1, 5, 24)
    assert "kernel" in wide.reason("before.weight")


def test_the_fused_convolution_of_onnxruntime(net: Net) -> None:
    h = net.images(8)
    shortcut = net.conv(h, 8, 12, name="shortcut")
    inputs = h, net.weight(12, 8, 1, 1, name="w", fan_in=8), net.weight(12, name="b", fan_in=1), shortcut
    h = net.op("FusedConv", *inputs, name="conv", domain="com.microsoft", activation="Relu")
    net.images_end(h, 12)
    wide = widen(net, "0.9")
    assert wide.shape("w") == (38, 25, 1, 1)
    assert wide.shape("b") == (38,)
    assert wide.shape("shortcut") == wide.shape("conv") == (1, 38, 8, 8)
