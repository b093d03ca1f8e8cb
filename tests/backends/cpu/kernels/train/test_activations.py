"""Activations in images16, forward and backward, against their formulas in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernel_reference import Array, Shape, aligned, images_of, lanes_of, random_array

from sift_onnx.backends.cpu import _kernels

ISAS = _kernels.supported_isas()
Exact = np.ndarray[Any, np.dtype[np.float64]]
Formula = Callable[[Exact], Exact]
ROOT = math.sqrt(2 / math.pi)


def normal(x: Exact) -> Exact:
    """The distribution up to x, without cancellation on either side."""
    return np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x])


def sigmoid(x: Exact) -> Exact:
    return np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-np.abs(x)))


def sigmoid_slope(x: Exact) -> Exact:
    return sigmoid(x) * sigmoid(-x)


def gelu_slope(x: Exact) -> Exact:
    return normal(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def twice(x: Exact) -> Exact:
    return 2 * ROOT * (x + 0.044715 * x**3)


def gelu_tanh_slope(x: Exact) -> Exact:
    return sigmoid(twice(x)) + x * sigmoid_slope(twice(x)) * 2 * ROOT * (1 + 3 * 0.044715 * x * x)


# Function, value, slope.
FUNCTIONS: list[tuple[tuple[str, float, float], Formula, Formula]] = [
    (("relu", 0, 0), lambda x: np.maximum(x, 0), lambda x: 1.0 * (x > 0)),
    (("leaky", 0.125, 0), lambda x: np.where(x > 0, x, x / 8), lambda x: np.where(x > 0, 1, 0.125)),
    (("clip", -0.5, 6), lambda x: np.clip(x, -0.5, 6), lambda x: 1.0 * ((x >= -0.5) & (x <= 6))),
    (("hard_sigmoid", 0.25, 0.5), lambda x: np.clip(x / 4 + 0.5, 0, 1), lambda x: 0.25 * (np.abs(x) <= 2)),
    (
        ("hard_swish", 0, 0),
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
        lambda x: np.clip(x / 6 + 0.5, 0, 1) + x / 6 * (np.abs(x) <= 3),
    ),
    (("sigmoid", 0, 0), sigmoid, sigmoid_slope),
    (("tanh", 0, 0), np.tanh, lambda x: 4 * sigmoid_slope(2 * x)),
    (("swish", 1, 0), lambda x: x * sigmoid(x), lambda x: sigmoid(x) + x * sigmoid_slope(x)),
    (("swish", 1.5, 0), lambda x: x * sigmoid(1.5 * x), lambda x: sigmoid(1.5 * x) + 1.5 * x * sigmoid_slope(1.5 * x)),
    (("gelu", 0, 0), lambda x: x * normal(x), gelu_slope),
    (("gelu_tanh", 0, 0), lambda x: x * sigmoid(twice(x)), gelu_tanh_slope),
]
NAMES = [f"{function[0]} {function[1]:g}" for function, _, _ in FUNCTIONS]


def run(function: tuple[str, float, float], shape: Shape, x: Array, dy: Array, isa: str, threads: int = 2) -> Any:
    pool, out, dx = _kernels.ThreadPool(threads), aligned(x.size), aligned(x.size)
    _kernels.activation_forward(pool, shape, function, x, out, isa)
    _kernels.activation_backward(pool, shape, function, dy, x, dx, isa)
    return out, dx


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("function", "value", "slope"), FUNCTIONS, ids=NAMES)
def test_values_and_gradients_are_those_of_the_formula(
    function: tuple[str, float, float], value: Formula, slope: Formula, isa: str
) -> None:
    rng = np.random.default_rng(0)
    for low, high in ((-30, -12), (-12, -5), (-5, -2), (-2, 0), (-1e-3, 1e-3), (0, 2), (2, 5), (5, 12), (12, 30)):
        x = rng.uniform(low, high, (33, 30, 1, 1)).astype(np.float32)
        exact = x.reshape(-1).astype(np.float64)
        out, dx = run(function, x.shape, lanes_of(x), lanes_of(np.ones_like(x), idle=0), isa)
        for found, wanted in ((images_of(out, x.shape), value(exact)), (images_of(dx, x.shape), slope(exact))):
            # GELU's tail is exact but for its exponent, which is rounded; next to nothing is zero.
            in_tail = function[0] in ("gelu", "gelu_tanh") and high != 0
            scale = np.abs(wanted) if in_tail else np.abs(wanted).max()
            bound = 2.0**-23 * (8 + 2 * np.minimum(np.abs(twice(exact)), 100) * in_tail)
            assert (np.abs(found.reshape(-1) - wanted) <= bound * scale + 1e-35).all(), (low, high)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("function", [function for function, _, _ in FUNCTIONS], ids=NAMES)
def test_what_is_finite_gives_finite_numbers_and_nan_gives_nan(function: tuple[str, float, float], isa: str) -> None:
    x, dy = aligned(16), aligned(16)
    x[:] = np.array([3e38, -3e38, 1e20, -1e20, 1e-45, -1e-45, 0, -0.0] * 2)
    dy[:] = 1
    if function[1] > 1:
        x /= 2  # the argument of its sigmoid is larger than x
    for found in run(function, (16, 1, 1, 1), x, dy, isa):
        assert np.isfinite(found).all()
    x[:] = np.nan
    out, dx = run(function, (16, 1, 1, 1), x, dy, isa)
    assert np.isnan(out).all()
    # What has pieces of constant slope takes one of them.
    assert np.isnan(dx).all() or function[0] in ("relu", "leaky", "clip", "hard_sigmoid", "hard_swish")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("function", [function for function, _, _ in FUNCTIONS], ids=NAMES)
def test_infinities_give_limits(function: tuple[str, float, float], isa: str) -> None:
    x = aligned(16)
    x[:8], x[8:] = np.inf, -np.inf
    out, _ = run(function, (16, 1, 1, 1), x, x, isa)
    above = {"clip": 6, "hard_sigmoid": 1, "sigmoid": 1, "tanh": 1}
    below = {"relu": 0, "leaky": -np.inf, "clip": -0.5, "hard_sigmoid": 0, "sigmoid": 0, "tanh": -1}
    np.testing.assert_array_equal(out[:8], above.get(function[0], np.inf))
    # Minus infinity times zero.
    np.testing.assert_array_equal(out[8:], below.get(function[0], np.nan))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [1, 33, 41])
def test_results_may_replace_operands_and_have_the_same_bits_on_any_number_of_threads(isa: str, size: int) -> None:
    """The largest is written past the caches where it does not."""
    shape = (size, 50, 32, 32)
    x, dy = (lanes_of(random_array(np.random.default_rng(seed), shape), idle=0) for seed in (0, 1))
    function = ("gelu", 0.0, 0.0)
    expected = run(function, shape, x, dy, isa, threads=1)
    for found, wanted in zip(run(function, shape, x, dy, isa, threads=3), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    images_of(expected[1], shape, idle_is_zero=True)
    pool = _kernels.ThreadPool(2)
    _kernels.activation_backward(pool, shape, function, dy, x, dy, isa)
    _kernels.activation_forward(pool, shape, function, x, x, isa)
    np.testing.assert_array_equal(dy, expected[1])
    np.testing.assert_array_equal(x, expected[0])


def test_an_unknown_function_and_tensors_of_other_sizes_are_refused() -> None:
    pool, x = _kernels.ThreadPool(1), aligned(32)
    with pytest.raises(ValueError, match="unknown activation 'softmax'"):
        _kernels.activation_forward(pool, (2, 2, 1, 1), ("softmax", 0.0, 0.0), x, x)
    with pytest.raises(ValueError, match="out: the array has 16 values, the shape 32"):
        _kernels.activation_forward(pool, (2, 2, 1, 1), ("gelu", 0.0, 0.0), x, aligned(16))
    with pytest.raises(ValueError, match="dy: the array has 16 values, the shape 32"):
        _kernels.activation_backward(pool, (2, 2, 1, 1), ("gelu", 0.0, 0.0), aligned(16), x, x)
