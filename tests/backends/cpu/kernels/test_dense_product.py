from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import ACTIVATIONS, activate, assert_close, random_array, run
from sparse_nets import SparseNet, assert_same_as_onnxruntime

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.shapes.random_inputs import random_feeds

Array = np.ndarray[Any, Any]
ISAS = _kernels.supported_isas()
# The least number of tokens that are halved, and of columns.
HALVED, WIDE = 7 * 16 + 1, 256


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


def product_of(weights: Array, bias: Array | None = None, **options: Any) -> _kernels.DenseProduct:
    rows, columns = weights.shape
    packed = _kernels.SparseWeights.from_dense(rows, columns, np.ascontiguousarray(weights))
    return _kernels.DenseProduct(packed, bias, **options)


def expected_of(x: Array, weights: Array) -> Array:
    return x[:, :, 0, 0].astype(np.float64) @ weights.T.astype(np.float64)


def rounding(x: Array, weights: Array) -> Array:
    """What an output may differ by, from its own token's and its own row's magnitude: some units of rounding."""
    of_token, of_row = (np.linalg.norm(a.reshape(len(a), -1).astype(np.float64), axis=1) for a in (x, weights))
    return 24 * 2.0**-24 * np.outer(of_token, of_row)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=60, deadline=None)
@given(
    m=st.sampled_from((1, 15, 16, 40, HALVED - 1, HALVED, 128, 130, 250)),
    rows=st.integers(1, 130),
    columns=st.sampled_from((1, 31, 32, WIDE - 33, WIDE - 1, WIDE, 300, 1024, 1025, 2100)),
    activation=st.sampled_from(ACTIVATIONS),
    has_bias=st.booleans(),
    has_second=st.booleans(),
    seed=st.integers(0, 99),
)
def test_agrees_with_numpy(
    pool: _kernels.ThreadPool,
    isa: str,
    m: int,
    rows: int,
    columns: int,
    activation: tuple[str, float, float],
    has_bias: bool,
    has_second: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    x = random_array(rng, (m, columns, 1, 1))
    weights = random_array(rng, (rows, columns)) / np.float32(math.sqrt(columns))
    bias = random_array(rng, (rows,)) if has_bias else None
    second = random_array(rng, (m, rows, 1, 1)) if has_second else None
    op = product_of(weights, bias, activation=activation, isa=isa)
    assert op.halves(x.shape) == (m >= HALVED and columns >= WIDE - 31 and rows > op.tile_rows)
    expected = expected_of(x, weights)
    if bias is not None:
        expected += bias
    if second is not None:
        expected += second[:, :, 0, 0]
    expected = activate(expected, activation)
    difference = np.abs(run(pool, op, x, second)[:, :, 0, 0] - expected)
    np.testing.assert_array_less(difference, rounding(x, weights) + 2e-6 * (1 + np.abs(expected)))


@pytest.mark.parametrize("isa", ISAS)
def test_tokens_and_rows_keep_their_own_precision(pool: _kernels.ThreadPool, isa: str) -> None:
    """However small beside those that Strassen's algorithm adds them to."""
    rng = np.random.default_rng(1)
    rows, columns, m = 120, 512, 256
    of_token, of_row = (10.0 ** rng.integers(-12, 13, size) for size in (m, rows))
    x = (random_array(rng, (m, columns, 1, 1)) * of_token[:, None, None, None]).astype(np.float32)
    weights = (random_array(rng, (rows, columns)) * of_row[:, None]).astype(np.float32)
    op = product_of(weights, isa=isa)
    assert op.halves(x.shape)
    difference = np.abs(run(pool, op, x)[:, :, 0, 0] - expected_of(x, weights))
    np.testing.assert_array_less(difference, rounding(x, weights))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_token_that_is_not_finite_stays_by_itself(pool: _kernels.ThreadPool, isa: str, bad: float) -> None:
    rng = np.random.default_rng(2)
    x, weights = random_array(rng, (200, 256, 1, 1)), random_array(rng, (100, 256))
    x[17, 5] = bad
    op = product_of(weights, isa=isa)
    assert op.halves(x.shape)
    y = run(pool, op, x)
    assert not np.isfinite(y[17]).any()
    others = np.arange(200) != 17
    assert_close(y[others], expected_of(x[others], weights)[:, :, None, None], 256)


def test_rows_that_are_not_finite_stay_by_themselves(pool: _kernels.ThreadPool) -> None:
    rng = np.random.default_rng(3)
    x, weights = random_array(rng, (200, 256, 1, 1)), random_array(rng, (100, 256))
    weights[40, 7] = np.inf
    op = product_of(weights)
    assert not op.halves(x.shape)
    y = run(pool, op, x)
    assert not np.isfinite(y[:, 40]).any()
    others = np.arange(100) != 40
    assert_close(y[:, others], expected_of(x, weights[others])[:, :, None, None], 256)


def test_extreme_magnitudes_do_not_run_over(pool: _kernels.ThreadPool) -> None:
    """Powers of two that would bring them near one are no floats."""
    weights, x = np.full((100, 256), 1e-42, np.float32), np.full((128, 256, 1, 1), 1e38, np.float32)
    np.testing.assert_allclose(run(pool, product_of(weights), x), 256 * 1e38 * float(weights[0, 0]), rtol=1e-5)
    y = run(pool, product_of(np.full((100, 256), 1e38, np.float32)), x)
    assert np.isposinf(y).all()
    nothing = run(pool, product_of(weights), np.zeros_like(x))
    np.testing.assert_array_equal(nothing, 0)


def test_large_outputs_that_go_past_the_caches(pool: _kernels.ThreadPool) -> None:
    """8 MiB and more; sums of tokens in several pieces, the last of them short."""
    rng = np.random.default_rng(4)
    x, weights = random_array(rng, (1330, 1100, 1, 1)), random_array(rng, (2000, 1100))
    assert_close(run(pool, product_of(weights), x), expected_of(x, weights)[:, :, None, None], 1100)


@pytest.mark.parametrize("m", [40, 300])
def test_any_number_of_threads_computes_the_same(m: int) -> None:
    rng = np.random.default_rng(5)
    x, op = random_array(rng, (m, 1500, 1, 1)), product_of(random_array(rng, (500, 1500)))
    alone, together = (run(_kernels.ThreadPool(threads), op, x) for threads in (1, 5))
    np.testing.assert_array_equal(alone, together)


def test_the_weights_can_be_had_back(pool: _kernels.ThreadPool) -> None:
    rng = np.random.default_rng(6)
    weights = random_array(rng, (70, 1100))
    weights[3, 5:9] = 0
    weights[9] *= np.float32(1e-20)
    op = product_of(weights)
    x = random_array(rng, (130, 1100, 1, 1))
    again = _kernels.DenseProduct(op.source())
    np.testing.assert_array_equal(run(pool, again, x), run(pool, op, x))


def test_what_does_not_fit_is_refused() -> None:
    weights = np.ones((30, 40), np.float32)
    with pytest.raises(ValueError, match="one bias per row"):
        product_of(weights, np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="columns of the weights"):
        product_of(weights).output_shape((4, 41, 1, 1))
    with pytest.raises(ValueError, match="weights are empty"):
        product_of(np.zeros((0, 4), np.float32))
    with pytest.raises(ValueError, match="most of the weights are zero"):
        product_of(np.eye(30, dtype=np.float32))


def test_the_head_of_a_language_model_takes_it() -> None:
    """For few tokens and many, one after the other: weights that one form was made of are given up by then."""
    net = SparseNet()
    x = net.op("MatMul", net.input("x", 2, 4, 600, declared=["n", "tokens", 600]), net.weight(600, 600), name="first")
    head = net.constant(random_array(np.random.default_rng(7), (600, 2100)), "head.weight")
    net.output(net.op("MatMul", net.op("Relu", x), head, name="head"))
    model = net.model()
    program = CpuProgram(model, CompileOptions(2))
    for tokens, algorithm in ((2, "matmul"), (100, "strassen"), (20, "dense"), (2, "matmul")):
        feeds = random_feeds(program.inputs, 2, {"x": (2, tokens, 600)})
        (kernel,) = [node.kernel for node in program.profile(feeds).nodes if node.name == "head"]
        assert algorithm in kernel
        for _ in range(2):  # in the second run weights have been given up
            assert_same_as_onnxruntime(model, feeds, program)
