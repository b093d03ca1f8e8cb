"""Operators of sparse int8 have the bits of onnxruntime's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from exact_onnxruntime import exact_onnxruntime
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import images_of, lanes_of
from onnx import helper, numpy_helper
from quad_reference import ISAS, aligned_words, as_images, from_quads, quads_words, run_quads, to_quads

from sift_onnx.backends.cpu import _kernels

SCALES = st.floats(2**-12, 4).map(np.float32)
BYTES = st.integers(0, 255)


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


def onnxruntime_of(
    op: str, inputs: Sequence[np.ndarray | np.generic], domain: str = "", outputs: int = 1, **attributes: Any
) -> list[np.ndarray]:
    """A node with the first input as the model's and the others as constants."""
    arrays = [np.asarray(value) for value in inputs]
    names = [f"x{i}" for i in range(len(arrays))]
    made = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, made, domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "node",
        [helper.make_tensor_value_info("x0", helper.np_dtype_to_tensor_dtype(arrays[0].dtype), arrays[0].shape)],
        [onnx.ValueInfoProto(name=name) for name in made],
        [numpy_helper.from_array(array, name) for array, name in zip(arrays[1:], names[1:], strict=True)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return list(exact_onnxruntime(model).run({"x0": arrays[0]}).values())


def random_bytes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 256, shape, np.uint8)


@settings(max_examples=15, deadline=None)
@given(SCALES, SCALES, BYTES, BYTES, st.integers(0, 9))
def test_convolution(
    pool: _kernels.ThreadPool, x_scale: np.float32, y_scale: np.float32, x_zero: int, y_zero: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = random_bytes(rng, 2, 12, 7, 9)
    weights = (rng.integers(-128, 128, (10, 12, 3, 3)) * (rng.random((10, 12, 3, 3)) < 0.2)).astype(np.int8)
    w_scale = (rng.random(10) * 0.02 + 1e-4).astype(np.float32)
    bias = rng.integers(-1000, 1000, 10, np.int32)
    expected = onnxruntime_of(
        "QLinearConv",
        (x, x_scale, np.uint8(x_zero), weights, w_scale, np.zeros(10, np.int8), y_scale, np.uint8(y_zero), bias),
        pads=(1, 2, 0, 1),
        strides=(2, 1),
    )[0]
    op = _kernels.QuantizedConv(
        _kernels.QuadWeights(weights), bias, x_scale * w_scale / y_scale, input_zero_point=x_zero, zero_point=y_zero,
        pads=(1, 2, 0, 1), stride=(2, 1),
    )  # fmt: skip
    np.testing.assert_array_equal(run_quads(pool, op, x), expected)


@settings(max_examples=15, deadline=None)
@given(SCALES, SCALES, SCALES, BYTES, BYTES, BYTES)
def test_addition(
    pool: _kernels.ThreadPool,
    a_scale: np.float32,
    b_scale: np.float32,
    y_scale: np.float32,
    a_zero: int,
    b_zero: int,
    y_zero: int,
) -> None:
    """All pairs of bytes."""
    a, b = (np.ascontiguousarray(side).astype(np.uint8).reshape(1, 32, 32, 64) for side in np.indices((256, 256)))
    zeros = [np.uint8(zero) for zero in (a_zero, b_zero, y_zero)]
    inputs = (a, a_scale, zeros[0], b, b_scale, zeros[1], y_scale, zeros[2])
    expected = onnxruntime_of("QLinearAdd", inputs, "com.microsoft")[0]
    for isa in ISAS:
        op = _kernels.QuadAdd(((a_scale, a_zero), (b_scale, b_zero), (y_scale, y_zero)), isa=isa)
        np.testing.assert_array_equal(run_quads(pool, op, a, b), expected)
        clamped = _kernels.QuadAdd(((a_scale, a_zero), (b_scale, b_zero), (y_scale, y_zero)), range=(50, 99), isa=isa)
        np.testing.assert_array_equal(run_quads(pool, clamped, a, b), expected.clip(50, 99))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [13, 56])
def test_addition_behind_a_convolution(pool: _kernels.ThreadPool, isa: str, rows: int) -> None:
    rng = np.random.default_rng(0)
    x, other = random_bytes(rng, 2, 9, 5, 6), random_bytes(rng, 2, rows, 5, 6)
    weights = rng.integers(-128, 128, (rows, 9, 1, 1), np.int8)
    multipliers = (rng.random(rows) * 2e-3).astype(np.float32)
    addition = ((np.float32(0.02), 90), (np.float32(0.03), 120), (np.float32(0.04), 110))
    arguments = {"input_zero_point": 5, "zero_point": 90, "isa": isa}
    quads = _kernels.QuadWeights(weights)
    alone = run_quads(pool, _kernels.QuantizedConv(quads, None, multipliers, **arguments), x)
    added = run_quads(pool, _kernels.QuadAdd(addition, range=(110, 255), isa=isa), alone, other)
    both = _kernels.QuantizedConv(quads, None, multipliers, addition=addition, range=(110, 255), **arguments)
    np.testing.assert_array_equal(run_quads(pool, both, x, other), added)
    with pytest.raises(ValueError, match="nothing to add"):
        run_quads(pool, both, x)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(1, 5, 7, 7), (19, 3, 3, 5), (2, 64, 4, 4)])
def test_pooling(pool: _kernels.ThreadPool, isa: str, shape: tuple[int, int, int, int]) -> None:
    rng = np.random.default_rng(1)
    x = random_bytes(rng, *shape)
    for window in ({"kernel": (3, 3), "stride": (2, 2), "pads": (1, 1, 1, 1)}, {"kernel": (2, 3), "dilation": (1, 1)}):
        for ceil_mode in (False, True):
            op = _kernels.QuadMaxPool(**window, ceil_mode=ceil_mode, isa=isa)
            expected = onnxruntime_of(
                "MaxPool", (x,), kernel_shape=window["kernel"], strides=window.get("stride", (1, 1)),
                pads=window.get("pads", (0, 0, 0, 0)), ceil_mode=int(ceil_mode),
            )[0]  # fmt: skip
            np.testing.assert_array_equal(run_quads(pool, op, x), expected)
    source, target = (np.float32(0.017), 131), (np.float32(0.011), 7)
    scales = (source[0], np.uint8(source[1]), target[0], np.uint8(target[1]))
    expected = onnxruntime_of("QLinearGlobalAveragePool", (x, *scales), "com.microsoft", channels_last=0)[0]
    np.testing.assert_array_equal(run_quads(pool, _kernels.QuadGlobalAverage(source, target, isa=isa), x), expected)


@pytest.mark.parametrize("count_padding", [False, True])
def test_average_pooling_is_within_a_step(pool: _kernels.ThreadPool, count_padding: bool) -> None:
    """onnxruntime pools floats."""
    x = random_bytes(np.random.default_rng(2), 2, 6, 9, 8)
    source, target = (np.float32(0.02), 120), (np.float32(0.01), 60)
    op = _kernels.QuadAveragePool(
        source, target, (3, 2), (2, 1), pads=(1, 1, 1, 0), count_padding=count_padding
    )  # fmt: skip
    expected = onnxruntime_of(
        "QLinearAveragePool", (x, source[0], np.uint8(source[1]), target[0], np.uint8(target[1])), "com.microsoft",
        kernel_shape=(3, 2), strides=(2, 1), pads=(1, 1, 1, 0), count_include_pad=int(count_padding),
    )[0]  # fmt: skip
    assert np.abs(run_quads(pool, op, x).astype(int) - expected).max() <= 1


def run_to_quads(pool: _kernels.ThreadPool, op: Any, x: np.ndarray, shape: Any) -> np.ndarray:
    out = aligned_words(quads_words(shape))
    op.run(pool, shape, x, out)
    return from_quads(out, shape)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (17, 5, 3, 3), (40, 70, 1, 1)])
@pytest.mark.parametrize("layout", ["planes", "images16"])
def test_quantization(pool: _kernels.ThreadPool, isa: str, shape: tuple[int, int, int, int], layout: str) -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(shape) * 3).astype(np.float32)
    x.flat[:6] = 0.5, 1.5, -0.5, 1e30, -1e30, -0.0
    scale, zero = np.float32(0.031), 77
    halves = (np.arange(-20, 20, dtype=np.float32) + np.float32(0.5)) * scale
    x.flat[6:126] = np.concatenate([halves, np.nextafter(halves, np.float32(9)), np.nextafter(halves, np.float32(-9))])
    stored = lanes_of(x) if layout == "images16" else x
    expected = onnxruntime_of("QuantizeLinear", (x, scale, np.uint8(zero)))[0]
    quads = run_to_quads(pool, _kernels.Quantize(scale, zero, source=layout, isa=isa), stored, shape)
    np.testing.assert_array_equal(quads, expected)
    op = _kernels.Dequantize(scale, zero, layout=layout, isa=isa)
    out = aligned_words(stored.size)
    op.run(pool, shape, to_quads(expected), out)
    back = onnxruntime_of("DequantizeLinear", (expected, scale, np.uint8(zero)))[0]
    if layout == "planes":
        np.testing.assert_array_equal(out.reshape(shape), back)
    else:
        np.testing.assert_array_equal(images_of(out, shape, idle_is_zero=shape[0] % 16 > 0), back)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", ["planes", "images16"])
@pytest.mark.parametrize("shift", [0.0, 50.0, -50.0])
def test_dynamic_quantization(pool: _kernels.ThreadPool, isa: str, layout: str, shift: float) -> None:
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((37, 66)) * 2 + shift).astype(np.float32)
    weights = (rng.integers(-128, 128, (21, 66)) * (rng.random((21, 66)) < 0.3)).astype(np.int8)
    bias = rng.standard_normal(21).astype(np.float32)
    y, scale, zero = onnxruntime_of("DynamicQuantizeLinear", (x,), outputs=3)
    shape = (37, 66, 1, 1)
    found = aligned_words(16 + quads_words(shape))
    stored = lanes_of(as_images(x)) if layout == "images16" else x
    _kernels.DynamicQuantize(source=layout, isa=isa).run(pool, shape, stored, found)
    assert (found[0], found[1:2].view(np.int32)[0]) == (scale, zero)
    np.testing.assert_array_equal(from_quads(found[16:], shape), as_images(y))
    w_scale = np.float32(0.004)
    sums = onnxruntime_of("MatMulInteger", (y, weights.T.copy(), zero, np.int8(0)))[0]
    op = _kernels.DequantizedConv(
        _kernels.QuadWeights(weights), None, np.float32([w_scale]), bias, input_zero_point=None, layout=layout, isa=isa
    )
    groups = 3 if layout == "images16" else 1
    out = aligned_words(groups * 16 * 21 if layout == "images16" else 37 * 21)
    op.run(pool, shape, found, out)
    rows = (
        out.reshape(3, 21, 16).transpose(0, 2, 1).reshape(-1, 21)[:37] if layout == "images16" else out.reshape(37, 21)
    )
    np.testing.assert_array_equal(rows, sums.astype(np.float32) * (scale * w_scale) + bias)


def test_infinite_inputs_have_no_scale(pool: _kernels.ThreadPool) -> None:
    x = np.zeros((1, 4), np.float32)
    x[0, 1] = np.inf
    found = aligned_words(16 + quads_words((1, 4, 1, 1)))
    _kernels.DynamicQuantize().run(pool, (1, 4, 1, 1), x, found)
    assert np.isinf(found[0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", ["planes", "images16"])
def test_integer_convolution(pool: _kernels.ThreadPool, isa: str, layout: str) -> None:
    rng = np.random.default_rng(5)
    x = random_bytes(rng, 3, 8, 6, 7)
    weights = rng.integers(-128, 128, (30, 8, 3, 3), np.int8)
    sums = onnxruntime_of("ConvInteger", (x, weights, np.uint8(31)), pads=(1, 1, 1, 1))[0]
    scales = rng.random(30).astype(np.float32)
    op = _kernels.DequantizedConv(
        _kernels.QuadWeights(weights), np.arange(30, dtype=np.int32), scales, input_zero_point=31, low=0.0,
        pads=(1, 1, 1, 1), layout=layout, isa=isa,
    )  # fmt: skip
    shape = (3, 30, 6, 7)
    out = aligned_words(16 * 30 * 42 if layout == "images16" else sums.size)
    op.run(pool, x.shape, to_quads(x), out)
    y = images_of(out, shape, idle_is_zero=True) if layout == "images16" else out.reshape(shape)
    expected = (sums + np.arange(30, dtype=np.int32)[:, None, None]).astype(np.float32) * scales[:, None, None]
    np.testing.assert_array_equal(y, expected.clip(0))
    other = rng.standard_normal(shape).astype(np.float32) * 1000
    adding = _kernels.DequantizedConv(
        _kernels.QuadWeights(weights), np.arange(30, dtype=np.int32), scales, input_zero_point=31, added=layout,
        low=0.0, pads=(1, 1, 1, 1), layout=layout, isa=isa,
    )  # fmt: skip
    adding.run(pool, x.shape, to_quads(x), out, lanes_of(other) if layout == "images16" else other)
    y = images_of(out, shape, idle_is_zero=True) if layout == "images16" else out.reshape(shape)
    np.testing.assert_array_equal(y, (expected + other).clip(0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(1, 3, 5, 5), (5, 9, 3, 7), (33, 6, 1, 1)])
@pytest.mark.parametrize("is_signed", [False, True])
def test_plain_bytes(pool: _kernels.ThreadPool, isa: str, shape: tuple[int, int, int, int], is_signed: bool) -> None:
    x = random_bytes(np.random.default_rng(6), *shape)
    words = -(-x.size // 4)
    plain = aligned_words(words)
    plain.view(np.uint8)[: x.size] = (x ^ 0x80 if is_signed else x).ravel()
    op = _kernels.ReorderBytes(to_quads=True, is_signed=is_signed, isa=isa)
    assert (op.input_layout, op.output_layout) == ("bytes", "quads")
    np.testing.assert_array_equal(run_to_quads(pool, op, plain, shape), x)
    back = aligned_words(words)
    _kernels.ReorderBytes(to_quads=False, is_signed=is_signed, isa=isa).run(pool, shape, to_quads(x), back)
    np.testing.assert_array_equal(back.view(np.uint8)[: x.size], plain.view(np.uint8)[: x.size])


def test_tables_and_channels(pool: _kernels.ThreadPool) -> None:
    rng = np.random.default_rng(7)
    x = random_bytes(rng, 3, 11, 4, 5)
    table = rng.permutation(256).astype(np.uint8)
    np.testing.assert_array_equal(run_quads(pool, _kernels.QuadTable(table), x), table[x])
    for begin, end, first, total in ((0, 11, 0, 11), (0, 11, 4, 15), (4, 8, 8, 20), (3, 9, 2, 12), (5, 5, 0, 3)):
        op = _kernels.QuadChannels(begin, end, first, total)
        out = to_quads(np.full((3, total, 4, 5), 99, np.uint8))
        op.run(pool, x.shape, to_quads(x), out)
        expected = np.full((3, total, 4, 5), 99, np.uint8)
        expected[:, first : first + end - begin] = x[:, begin:end]
        np.testing.assert_array_equal(from_quads(out, expected.shape), expected)
    for spec in ((0, 2, 3, 4), (-1, 1, 0, 4), (3, 2, 0, 4)):
        with pytest.raises(ValueError, match="no room"):
            _kernels.QuadChannels(*spec)
