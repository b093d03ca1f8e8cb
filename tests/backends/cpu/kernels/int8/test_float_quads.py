"""Floats that lie beside the bytes that they are quantized to, in every instruction set and form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quad_reference import FORMS, aligned_words, from_float_quads, integer_conv, quads_words, to_float_quads, to_quads

from sift_onnx.backends.cpu import _kernels

FLOATS = (0.0, -0.0, 1e-40, 1e30, -1e30, 3e38, -3e38, np.inf, -np.inf, np.nan)


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


def clipped(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """What is no number becomes the lower bound."""
    return np.where(x > low, np.minimum(x, high), np.float32(low)).astype(np.float32)


def quantized(x: np.ndarray, scale: np.float32, zero: int) -> np.ndarray:
    """QuantizeLinear."""
    with np.errstate(over="ignore"):
        return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)


def check(
    pool: _kernels.ThreadPool,
    form: tuple[str, str],
    x: np.ndarray,
    weights: np.ndarray,
    multipliers: np.ndarray,
    *,
    other: np.ndarray | None = None,
    added: str = "float_quads",
    layout: str = "float_quads",
    quantization: tuple[np.float32, int] | None = None,
    low: float = -np.inf,
    high: float = np.inf,
    is_in_place: bool = False,
    bias: np.ndarray | None = None,
    **window: Any,
) -> None:
    op = _kernels.DequantizedConv(
        _kernels.QuadWeights(weights), None, multipliers, bias, input_zero_point=7, layout=layout, low=low, high=high,
        added=None if other is None else added, quantization=quantization, isa=form[0], algorithm=form[1], **window,
    )  # fmt: skip
    shape = op.output_shape(x.shape)
    expected = integer_conv(x, weights, 7, **window).astype(np.float32) * multipliers.reshape(1, -1, 1, 1)
    if bias is not None:
        expected += bias.reshape(1, -1, 1, 1)
    if other is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            expected = expected + other
    expected = clipped(expected, low, high)
    second = other
    if other is not None and added == "float_quads":
        second = to_float_quads(other)
    if other is not None and added == "planes":
        second = aligned_words(other.size)
        second[:] = other.reshape(-1)
    out = second if is_in_place else aligned_words(5 * quads_words(shape) if layout == "float_quads" else expected.size)
    op.run(pool, x.shape, to_quads(x), out, second)
    if layout == "planes":
        np.testing.assert_array_equal(out.reshape(shape), expected)
        return
    floats, bytes_beside = from_float_quads(out, shape)
    np.testing.assert_array_equal(floats, expected)
    if quantization is not None:
        np.testing.assert_array_equal(bytes_beside, quantized(expected, *quantization))


@st.composite
def layers(draw: st.DrawFn) -> dict[str, Any]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    channels, rows, kernel = draw(st.integers(1, 9)), draw(st.integers(1, 70)), draw(st.integers(1, 2))
    size = draw(st.integers(1, 3)), channels, draw(st.integers(kernel, 6)), draw(st.integers(kernel, 9))
    weights = rng.integers(-128, 128, (rows, channels, kernel, kernel)) * (rng.random((rows, channels, 1, 1)) < 0.4)
    shape = (size[0], rows, size[2] - kernel + 1, size[3] - kernel + 1)
    other = (rng.standard_normal(shape) * 3).astype(np.float32)
    odd = rng.integers(0, other.size, 12)
    other.flat[odd] = np.array(FLOATS, np.float32)[rng.integers(0, len(FLOATS), 12)]
    added = draw(st.sampled_from((None, "planes", "float_quads", "float_quads")))
    return {
        "x": rng.integers(0, 256, size, np.uint8),
        "weights": weights.astype(np.int8),
        "multipliers": (rng.random(rows) * draw(st.sampled_from((1e-4, 1e-2)))).astype(np.float32),
        "other": None if added is None else other,
        "added": added or "float_quads",
        "is_in_place": added == "float_quads" and draw(st.booleans()),
        "quantization": draw(st.sampled_from((None, (np.float32(0.0371), 0), (np.float32(1 / 3), 130),
                                              (np.float32(2.0**-20), 255), (np.float32(2.0**-90), 7)))),
        "low": draw(st.sampled_from((-np.inf, 0.0))),
        "high": draw(st.sampled_from((np.inf, 6.0))),
        "bias": rng.standard_normal(rows).astype(np.float32) if draw(st.booleans()) else None,
    }  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(layers())
def test_floats_and_their_bytes_are_exact(pool: _kernels.ThreadPool, layer: dict[str, Any]) -> None:
    for form in FORMS:
        check(pool, form, **layer)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@pytest.mark.parametrize("size", [(1, 7, 7), (2, 4, 8), (3, 5, 5)])
def test_planes_of_floats_beside_bytes_and_others(
    pool: _kernels.ThreadPool, form: tuple[str, str], size: tuple[int, int, int]
) -> None:
    rng = np.random.default_rng(0)
    images, height, width = size
    x = rng.integers(0, 256, (images, 12, height, width), np.uint8)
    weights = rng.integers(-128, 128, (37, 12, 1, 1), np.int8)
    other = rng.standard_normal((images, 37, height, width)).astype(np.float32)
    check(pool, form, x, weights, np.float32([1e-3] * 37), other=other, layout="planes", low=0.0)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@pytest.mark.parametrize("scale", [0.0371, 1 / 3, 0.25])
def test_sums_next_to_halves(pool: _kernels.ThreadPool, form: tuple[str, str], scale: float) -> None:
    """Of every step of the scale, the floats next to where it is rounded up."""
    own = np.float32(scale)
    halves = (np.arange(-140, 140, dtype=np.float32) + np.float32(0.5)) * own
    near = [np.nextafter(halves, np.float32(end)) for end in (-1e9, 1e9)]
    other = np.stack([halves, *near, halves], 1).reshape(1, 280 * 4, 1, 1)
    x, weights = np.full((1, 4, 1, 1), 7, np.uint8), np.ones((280 * 4, 4, 1, 1), np.int8)
    check(pool, form, x, weights, np.ones(280 * 4, np.float32), other=other, quantization=(own, 131))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"added": "images16"}, "layout of the output or in float_quads"),
        ({"added": "quads"}, "unknown layout 'quads'"),
        ({"layout": "planes", "quantization": (0.1, 3)}, "beside floats in float_quads"),
        ({"quantization": (0.0, 3)}, "positive and finite"),
        ({"quantization": (0.1, 256)}, r"not in \[0, 255\]"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], message: str) -> None:
    given = {"input_zero_point": 0, "layout": "float_quads"} | arguments
    with pytest.raises(ValueError, match=message):
        _kernels.DequantizedConv(_kernels.QuadWeights(np.ones((2, 4), np.int8)), None, np.float32([1]), **given)


def test_a_sum_without_its_second_operand_is_refused(pool: _kernels.ThreadPool) -> None:
    op = _kernels.DequantizedConv(
        _kernels.QuadWeights(np.ones((2, 4), np.int8)), None, np.float32([1]), input_zero_point=0, added="float_quads",
        layout="float_quads",
    )  # fmt: skip
    assert (op.output_layout, op.second_layout) == ("float_quads", "float_quads")
    x = np.ones((1, 4), np.uint8)
    with pytest.raises(ValueError, match="nothing to add"):
        op.run(pool, (1, 4, 1, 1), to_quads(x), aligned_words(5 * 16))


@pytest.mark.parametrize("form", FORMS)
def test_columns_beyond_those_of_16_bits(pool: _kernels.ThreadPool, form: tuple[str, str]) -> None:
    """Lists that lie side by side have no room for them."""
    rng = np.random.default_rng(0)
    channels = 4 * 65536 + 8
    weights = np.zeros((6, channels, 1, 1), np.int8)
    weights[:, rng.choice(channels, 500)] = rng.integers(-127, 128, (6, 500, 1, 1))
    weights[2, -1] = 99
    x = rng.integers(0, 256, (1, channels, 1, 1)).astype(np.uint8)
    check(pool, form, x, weights, np.full(6, 0.5, np.float32), layout="planes")
