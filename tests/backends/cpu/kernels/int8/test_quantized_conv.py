"""Convolutions of quads against exact integers, in every instruction set and form, on any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quad_reference import FORMS, as_images, integer_conv, requantize, run_quads

from sift_onnx.backends.cpu import _kernels


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


def sparse(rng: np.random.Generator, shape: tuple[int, ...], density: float) -> np.ndarray:
    values = rng.integers(-128, 128, shape, np.int8)
    return np.where(rng.random(shape) < density, values, 0).astype(np.int8)


def check(
    pool: _kernels.ThreadPool,
    form: tuple[str, str],
    x: np.ndarray,
    weights: np.ndarray,
    *,
    zero_point: int = 0,
    bias: np.ndarray | None = None,
    multipliers: np.ndarray | None = None,
    groups: int = 1,
    out_zero: int = 128,
    range: tuple[int, int] = (0, 255),
    **window: Any,
) -> None:
    sums = integer_conv(x, weights, zero_point, groups=groups, **window)
    if bias is not None:
        sums += bias.reshape(1, -1, 1, 1)
    if multipliers is None:
        multipliers = np.float32([100 / max(1.0, float(np.abs(sums).max()))])
    op = _kernels.QuantizedConv(
        _kernels.QuadWeights(weights, groups=groups),
        bias,
        multipliers,
        input_zero_point=zero_point,
        zero_point=out_zero,
        range=range,
        isa=form[0],
        algorithm=form[1],
        **window,
    )
    assert form[1].startswith(op.algorithm)
    np.testing.assert_array_equal(run_quads(pool, op, x), requantize(sums, multipliers, out_zero, *range))


@st.composite
def layers(draw: st.DrawFn) -> dict[str, Any]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))
    of_group, rows = draw(st.integers(1, 21)), groups * draw(st.integers(1, 31))
    kernel = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    pads = tuple(draw(st.integers(0, 3)) for _ in range(4))
    dilation = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    # As large as a window, at least.
    height, width = (
        (kernel[axis] - 1) * dilation[axis] + 1 + draw(st.integers(0, 9 if axis == 0 else 20)) for axis in (0, 1)
    )
    weights = sparse(rng, (rows, of_group, *kernel), draw(st.sampled_from((0.0, 0.05, 0.3, 1.0))))
    if rows > 2:
        weights[1], weights[2] = 0, -128
    return {
        "x": rng.integers(0, 256, (draw(st.integers(1, 3)), groups * of_group, height, width), np.uint8),
        "weights": weights,
        "groups": groups,
        "zero_point": draw(st.sampled_from((0, 1, 128, 255))),
        "bias": rng.integers(-(2**20), 2**20, rows, np.int32) if draw(st.booleans()) else None,
        "multipliers": (rng.random(rows) * draw(st.sampled_from((1e-5, 1e-3, 1.0)))).astype(np.float32),
        "out_zero": draw(st.sampled_from((0, 7, 128, 255))),
        "range": draw(st.sampled_from(((0, 255), (128, 255), (20, 30)))),
        "stride": (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        "dilation": dilation,
        "pads": pads,
    }


@settings(max_examples=25, deadline=None)
@given(layers())
def test_sums_and_rounding_are_exact(pool: _kernels.ThreadPool, layer: dict[str, Any]) -> None:
    for form in FORMS:
        check(pool, form, **layer)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_saturating_products_are_exact(pool: _kernels.ThreadPool, form: tuple[str, str]) -> None:
    """Sums of 16 bits would not hold 255 * -128 * 2."""
    x = np.full((2, 64, 3, 5), 255, np.uint8)
    check(pool, form, x, np.full((5, 64, 3, 3), -128, np.int8), pads=(1, 1, 1, 1))
    check(pool, form, x, np.full((5, 64, 3, 3), 127, np.int8), pads=(1, 1, 1, 1), zero_point=255)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@pytest.mark.parametrize("tokens", [1, 16, 50, 300])
def test_products_of_rows(pool: _kernels.ThreadPool, form: tuple[str, str], tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    x = rng.integers(0, 256, (tokens, 130), np.uint8)
    check(pool, form, x, sparse(rng, (61, 130), 0.1), zero_point=100, bias=rng.integers(-99, 99, 61, np.int32))


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_depthwise_is_groups_of_one_channel(pool: _kernels.ThreadPool, form: tuple[str, str]) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (2, 37, 9, 8), np.uint8)
    check(pool, form, x, sparse(rng, (37, 1, 3, 3), 1.0), groups=37, pads=(1, 1, 1, 1), stride=(2, 2), zero_point=3)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@pytest.mark.parametrize(
    ("channels", "size", "stride", "pads", "kernel"),
    [
        (3, (20, 32), (2, 2), (3, 3, 3, 3), 7),
        (3, (9, 48), (1, 1), (1, 1, 1, 1), 3),
        (3, (6, 9), (1, 1), (0, 0, 0, 0), 2),
        (2, (9, 13), (1, 2), (2, 2, 2, 2), 5),
        (1, (7, 7), (1, 1), (1, 1, 1, 1), 3),
        # The last of 16 positions lies 30 behind the first, as with a stride of 2, but those between do not.
        (3, (16, 6), (1, 3), (0, 1, 0, 1), 1),
    ],
)
def test_first_layers(
    pool: _kernels.ThreadPool,
    form: tuple[str, str],
    channels: int,
    size: tuple[int, int],
    stride: tuple[int, int],
    pads: tuple[int, int, int, int],
    kernel: int,
) -> None:
    """Whose taps share quads, unless they are so sparse that this leaves as many of them."""
    rng = np.random.default_rng(2)
    x = rng.integers(0, 256, (2, channels, *size), np.uint8)
    for density in (1.0, 0.05):
        weights = sparse(rng, (20, channels, kernel, kernel), density)
        check(pool, form, x, weights, stride=stride, pads=pads, zero_point=114)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_the_same_bits_for_any_number_of_threads(form: tuple[str, str], threads: int) -> None:
    rng = np.random.default_rng(1)
    for size in (5, 28):
        x = rng.integers(0, 256, (1, 24, size, size), np.uint8)
        check(_kernels.ThreadPool(threads), form, x, sparse(rng, (90, 24, 3, 3), 0.2), pads=(1, 1, 1, 1))


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_sums_wrap_around(pool: _kernels.ThreadPool, form: tuple[str, str]) -> None:
    weights = np.ones((2, 4), np.int8)
    bias = np.array([2**31 - 1, -(2**31)], np.int32)
    op = _kernels.QuantizedConv(
        _kernels.QuadWeights(weights), bias, np.float32([2.0**-25]), input_zero_point=0, zero_point=128,
        isa=form[0], algorithm=form[1],
    )  # fmt: skip
    x = np.ones((1, 4), np.uint8)
    np.testing.assert_array_equal(run_quads(pool, op, x).ravel(), [128 - 64, 128 - 64])


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@pytest.mark.parametrize("channels", [2, 9])
def test_weights_of_more_than_eight_bits(pool: _kernels.ThreadPool, form: tuple[str, str], channels: int) -> None:
    rng = np.random.default_rng(4)
    weights = rng.integers(-255, 256, (24, channels, 3, 3), np.int16) * (rng.random((24, channels, 3, 3)) < 0.5)
    weights[0], weights[1], weights[2] = 255, -255, 128
    x = rng.integers(0, 256, (2, channels, 5, 9), np.uint8)
    check(pool, form, x, weights.astype(np.int16), pads=(1, 1, 1, 1), zero_point=9)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@pytest.mark.parametrize("most", [1.0, 0.9999999, 3e38])
def test_what_no_word_holds_is_cut_off(pool: _kernels.ThreadPool, form: tuple[str, str], most: float) -> None:
    weights = np.zeros((4, 4), np.int8)
    bias = np.array([2**31 - 1, -(2**31), 2**31 - 1, -(2**31)], np.int32)
    multipliers = np.float32([most, most, 0.5, 0.5])
    x = np.zeros((1, 4), np.uint8)
    check(pool, form, x, weights, bias=bias, multipliers=multipliers, out_zero=77)
    check(pool, form, x, weights, bias=bias, multipliers=multipliers, out_zero=255, range=(30, 255))


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@pytest.mark.parametrize("divisor", [0.0371, 1 / 3, 2.0**-20, 2.0**-90])
def test_quotients_of_rounded_products(pool: _kernels.ThreadPool, form: tuple[str, str], divisor: float) -> None:
    """Sums next to those whose quotients are halves: one rounding in the place of two would make other bytes."""
    rng = np.random.default_rng(5)
    multiplier, by = np.float32(divisor / rng.uniform(1e3, 1e5)), np.float32(divisor)
    halves = (np.arange(-100, 156)[:, None] + 0.5) * (float(by) / float(multiplier))
    sums = (np.rint(halves) + np.arange(-1, 2)).astype(np.int32).reshape(-1)
    given: dict[str, Any] = {"input_zero_point": 0, "zero_point": 100, "divisor": by, "range": (3, 250)}
    given |= {"isa": form[0], "algorithm": form[1]}
    weights = _kernels.QuadWeights(np.zeros((sums.size, 4), np.int8))
    op = _kernels.QuantizedConv(weights, sums, multiplier.reshape(1), **given)
    x, other = np.zeros((1, 4), np.uint8), rng.integers(0, 256, (1, sums.size), np.uint8)
    products = sums.astype(np.float32) * multiplier
    expected = np.clip(np.rint(products / by) + 100, 0, 255).astype(np.uint8)
    found = run_quads(pool, op, x)
    np.testing.assert_array_equal(found.ravel(), expected.clip(3, 250))
    addition = ((0.02, 100), (0.03, 120), (0.04, 110))
    adds = _kernels.QuantizedConv(weights, sums, multiplier.reshape(1), addition=addition, **given)
    both = _kernels.QuadAdd(addition, range=(3, 250), isa="portable")
    np.testing.assert_array_equal(run_quads(pool, adds, x, other), run_quads(pool, both, expected[None], other))


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@pytest.mark.parametrize("scale", [2.0**-30, 0.7, 2.0**30])
def test_what_is_added_is_cut_off(pool: _kernels.ThreadPool, form: tuple[str, str], scale: float) -> None:
    """All pairs of a byte that a product makes and of one that is added, in any scale of their sum."""
    own, other = (
        np.ascontiguousarray(side).astype(np.uint8).reshape(1, 4, 128, 128) for side in np.indices((256, 256))
    )
    addition = ((0.5, 3), (0.25, 200), (scale, 100))
    given: dict[str, Any] = {"zero_point": 3, "isa": form[0], "addition": addition, "range": (9, 240)}
    op = _kernels.QuantizedConv(
        _kernels.QuadWeights(np.eye(4, dtype=np.int8) * 64), np.full(4, -64 * 3, np.int32), np.float32([1 / 64]),
        input_zero_point=0, algorithm=form[1], **given,
    )  # fmt: skip
    expected = run_quads(pool, _kernels.QuadAdd(addition, range=(9, 240), isa="portable"), own, other)
    np.testing.assert_array_equal(run_quads(pool, op, own, other), expected)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@pytest.mark.parametrize("rows", [4, 30])
def test_numbers_that_are_added_to_channels(pool: _kernels.ThreadPool, form: tuple[str, str], rows: int) -> None:
    """To every byte that a product makes."""
    rng = np.random.default_rng(6)
    x = np.tile(np.arange(256, dtype=np.uint8)[:, None], (1, rows))
    factor, rests = np.float32(0.731), (rng.standard_normal(rows) * 90).astype(np.float32)
    op = _kernels.QuantizedConv(
        _kernels.QuadWeights(np.eye(rows, dtype=np.int8) * 64), None, np.float32([1 / 64]), input_zero_point=0,
        zero_point=0, channel_addition=(factor, rests), range=(9, 240), isa=form[0], algorithm=form[1],
    )  # fmt: skip
    exact = (x.astype(np.float64) * np.float64(factor) + rests).astype(np.float32)
    np.testing.assert_array_equal(run_quads(pool, op, x)[:, :, 0, 0], np.rint(exact).clip(9, 240))


def test_stored_quads_come_back(pool: _kernels.ThreadPool) -> None:
    rng = np.random.default_rng(3)
    values = sparse(rng, (12, 5, 3, 2), 0.2)
    sizes, counts, columns, quads = _kernels.QuadWeights(values, groups=2).stored()
    assert sizes == (12, 10, 3, 2, 2)
    x = rng.integers(0, 256, (1, 10, 6, 6), np.uint8)
    results = [
        run_quads(pool, _kernels.QuantizedConv(weights, None, np.float32([1e-3]), input_zero_point=7, zero_point=9), x)
        for weights in (
            _kernels.QuadWeights(values, groups=2),
            _kernels.QuadWeights.from_rows(*sizes, counts, columns, quads),
            _kernels.QuadWeights.from_rows(*sizes, counts, columns.astype(np.uint16), quads),
        )
    ]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize(
    ("counts", "columns", "message"),
    [
        ([1], [0, 1], "a count for each row, and a column for each quad"),
        ([2, 1], [0, 1], "a count for each row, and a column for each quad"),
        ([2, 2], [0, 1, 0], "more quads than there are"),
        ([1, 1], [0, 1, 0], "fewer quads than there are"),
        ([2, 1], [1, 0, 0], "not descend within a row"),
        ([2, 1], [0, 4, 0], "lie within the weights"),
    ],
)
def test_stored_quads_that_do_not_fit_are_refused(counts: list[int], columns: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _kernels.QuadWeights.from_rows(2, 8, 1, 2, 1, np.uint32(counts), np.uint32(columns), np.ones(3, np.uint32))


def test_quads_that_are_all_zero_are_left_out() -> None:
    weights = np.zeros((3, 8, 2, 2), np.int8)
    weights[0, 2, 1, 1] = 5
    weights[0, 3, 1, 1] = -5
    weights[2, 4, 0, 0] = 1
    quads = _kernels.QuadWeights(weights)
    assert (quads.live_quads, quads.quads) == (2, 3 * 2 * 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_zero_point": 256}, r"not in \[0, 255\]"),
        ({"zero_point": -1}, r"not in \[0, 255\]"),
        ({"range": (9, 8)}, "above its high one"),
        ({"multipliers": np.ones(3, np.float32)}, "one multiplier per row"),
        ({"multipliers": np.float32([np.inf])}, "not finite"),
        ({"divisor": 0.0}, "positive and finite"),
        ({"channel_addition": (0.0, np.ones(2, np.float32))}, "positive and finite"),
        ({"channel_addition": (1.0, np.ones(3, np.float32))}, "per row"),
        ({"channel_addition": (1.0, np.float32([np.nan]))}, "not finite"),
        ({"bias": np.ones(3, np.int32)}, "one bias per row"),
        ({"addition": ((1.0, 0), (0.0, 0), (1.0, 0))}, "positive and finite"),
        ({"algorithm": "dense"}, "unknown algorithm"),
        ({"isa": "sse9"}, "does not run instruction set 'sse9'"),
        ({"isa": "portable", "algorithm": "generated"}, "does not run generated code"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], message: str) -> None:
    weights = _kernels.QuadWeights(np.ones((2, 4), np.int8))
    given = {"bias": None, "multipliers": np.float32([1]), "input_zero_point": 0, "zero_point": 0} | arguments
    with pytest.raises(ValueError, match=message):
        _kernels.QuantizedConv(weights, **given)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 1, 1)])
def test_groups_that_divide_no_rows_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="groups do not divide"):
        _kernels.QuadWeights(np.ones(shape, np.int8), groups=3)


def test_another_number_of_channels_is_refused(pool: _kernels.ThreadPool) -> None:
    op = _kernels.QuantizedConv(
        _kernels.QuadWeights(np.ones((2, 4), np.int8)), None, np.float32([1]), input_zero_point=0, zero_point=0
    )
    with pytest.raises(ValueError, match="the weights' number of channels"):
        run_quads(pool, op, as_images(np.ones((1, 5), np.uint8)))


def test_windows_of_too_many_taps_are_refused(pool: _kernels.ThreadPool) -> None:
    op = _kernels.QuadMaxPool((2**10, 2**10), pads=(2**10,) * 4)
    with pytest.raises(ValueError, match="more than 2\\*\\*16 taps"):
        run_quads(pool, op, np.ones((1, 4, 1, 1), np.uint8))
