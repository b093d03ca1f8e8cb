"""Quantized graphs: scales follow their axis; stored integers keep their size and say why."""

from __future__ import annotations

import numpy as np
import pytest
from nets import Net, widen


@pytest.mark.parametrize(("sparsity", "width"), [("0.5", 11), ("0.75", 16), ("0.9", 25)])
def test_quantized_activations_grow(net: Net, sparsity: str, width: int) -> None:
    scale, zero = net.constant(0.05), net.constant(np.uint8(128))
    q = net.op("QuantizeLinear", net.images(8), scale, zero, name="q")
    net.images_end(net.op("DequantizeLinear", q, scale, zero, name="dq"), 8)
    wide = widen(net, sparsity)
    assert wide.shape("q") == wide.shape("dq") == (1, width, 8, 8)


def test_a_scale_for_each_channel_grows_with_the_channels(net: Net) -> None:
    scale = net.constant(np.random.default_rng(0).uniform(0.01, 0.1, 8), "scale")
    q = net.op("QuantizeLinear", net.images(8), scale, name="q", axis=1)
    net.images_end(net.op("DequantizeLinear", q, scale, axis=1), 8)
    wide = widen(net)
    assert wide.shape("scale") == (16,)
    assert np.all(wide.initializers["scale"] > 0)


def test_a_scale_along_the_last_axis_grows_with_the_features(net: Net) -> None:
    scale = net.constant(np.random.default_rng(0).uniform(0.01, 0.1, 8), "scale")
    q = net.op("QuantizeLinear", net.tokens(8), scale, name="q", axis=-1)
    net.tokens_end(net.op("DequantizeLinear", q, scale, axis=-1), 8)
    assert widen(net).shape("scale") == (16,)


def quantized_weight(net: Net, *shape: int) -> str:
    stored = net.constant(np.random.default_rng(0).integers(-90, 90, shape), "stored", np.int8)
    return str(net.op("DequantizeLinear", stored, net.constant(0.01), name="weight"))


def test_a_quantized_weight_keeps_its_sizes_and_says_why(net: Net) -> None:
    h = net.op("MatMul", net.tokens(8), quantized_weight(net, 8, 6), name="mm")
    net.tokens_end(net.dense(h, 6, 12, name="free"), 12)
    wide = widen(net)
    assert wide.shape("stored") == (8, 6)
    assert wide.shape("free") == (1, 5, 24)
    assert "integers" in wide.reason("before.weight")
    # It is no product of two activations either.
    assert wide.report["totals"]["attention_macs_before"] == 0


def test_a_quantized_kernel_keeps_its_sizes_and_says_why(net: Net) -> None:
    h = net.op("Conv", net.images(8), quantized_weight(net, 6, 8, 1, 1), name="conv")
    net.images_end(net.conv(h, 6, 12, name="free"), 12)
    wide = widen(net)
    assert wide.shape("stored") == (6, 8, 1, 1)
    assert wide.shape("free") == (1, 24, 8, 8)
    assert "integers" in wide.reason("before.weight")


def test_blocks_of_a_quantized_weight_keep_it_as_it_is() -> None:
    net = Net(21)
    stored = net.constant(np.random.default_rng(0).integers(-90, 90, (8, 6)), "stored", np.int8)
    scales = net.constant(np.full((4, 6), 0.01))
    weight = net.op("DequantizeLinear", stored, scales, name="weight", axis=0, block_size=2)
    h = net.op("MatMul", net.tokens(8), weight, name="mm")
    net.tokens_end(net.dense(h, 6, 12, name="free"), 12)
    wide = widen(net)
    assert wide.shape("stored") == (8, 6)
    assert wide.shape("free") == (1, 5, 24)


def test_a_weight_that_is_quantized_on_the_fly_stays(net: Net) -> None:
    """Quantization-aware training: a stored float weight goes through QuantizeLinear and back."""
    weight = net.weight(8, 6, name="float")
    scale = net.constant(0.01)
    weight = net.op("DequantizeLinear", net.op("QuantizeLinear", weight, scale), scale)
    h = net.op("MatMul", net.tokens(8), weight, name="mm")
    net.tokens_end(net.dense(h, 6, 12, name="free"), 12)
    wide = widen(net)
    assert wide.shape("float") == (8, 6)
    assert wide.shape("free") == (1, 5, 24)
    assert "computed" in wide.reason("before.weight")


def test_activations_that_are_quantized_by_their_range_grow(net: Net) -> None:
    q, scale, zero = net.op("DynamicQuantizeLinear", net.tokens(8), name="q", outputs=3)
    net.tokens_end(net.op("DequantizeLinear", q, scale, zero, name="dq"), 8)
    assert widen(net).shape("dq") == (1, 5, 16)


def test_integer_products_keep_what_they_read(net: Net) -> None:
    h = net.tokens(8)
    q, scale, zero = net.op("DynamicQuantizeLinear", h, name="q", outputs=3)
    stored = net.constant(np.random.default_rng(0).integers(-90, 90, (8, 6)), "stored", np.int8)
    product = net.op("Cast", net.op("MatMulInteger", q, stored, zero, name="mm"), to=1)
    product = net.op("Mul", product, net.op("Mul", scale, net.constant(0.01)))
    net.tokens_end(net.dense(product, 6, 12, name="free"), 12)
    wide = widen(net, strict=True)
    assert wide.shape("q") == (1, 5, 8)
    assert wide.shape("free") == (1, 5, 24)
    assert "integers" in wide.reason("before.weight")


def test_a_weight_in_four_bits_keeps_its_sizes(net: Net) -> None:
    h = net.tokens(16)
    packed = net.constant(np.random.default_rng(0).integers(0, 255, (6, 1, 8)), "packed", np.uint8)
    inputs = packed, net.constant(np.full(6, 0.01), "scales")
    h = net.op("MatMulNBits", h, *inputs, name="mm", domain="com.microsoft", K=16, N=6, bits=4, block_size=16)
    net.tokens_end(net.dense(net.dense(h, 6, 12, name="free"), 12, 6), 6)
    wide = widen(net, strict=True)
    assert wide.shape("mm") == (1, 5, 6)
    assert wide.shape("before") == (1, 5, 16)
    assert "before it is quantized" in wide.reason("before.weight")


def test_a_product_that_quantizes_its_activations_keeps_its_sizes(net: Net) -> None:
    h = net.tokens(16)
    stored = net.constant(np.random.default_rng(0).integers(0, 255, (16, 6)), "stored", np.uint8)
    h = net.op("DynamicQuantizeMatMul", h, stored, net.constant(0.01), name="mm", domain="com.microsoft")
    net.tokens_end(net.dense(h, 6, 12, name="free"), 12)
    wide = widen(net, strict=True)
    assert wide.shape("mm") == (1, 5, 6)
    assert wide.shape("free") == (1, 5, 24)
