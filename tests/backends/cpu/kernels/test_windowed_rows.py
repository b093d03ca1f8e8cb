"""Sparse weights with sixteen rows in the lanes, in windows of columns: against numpy, in each instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import assert_close, product, random_array, sparse_integers

from sift_onnx.backends.cpu import _kernels

pytestmark = pytest.mark.skipif(
    "avx512" not in _kernels.supported_isas(), reason="only kernels of AVX-512 prefer windows"
)
# What multiplies by them: kernels of windows, and those that take weights one by one.
VARIANTS = [*((isa, "none") for isa in _kernels.supported_isas()), ("", "vnni"), ("", "vbmi2"), ("", "amx")]
Floats = np.ndarray


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


def packed(
    weights: Floats, scales: Floats | None = None, extension: str = "vnni", values: str = "int8", **more: int
) -> _kernels.PackedRows:
    """For AVX-512; by default without instructions that bring bytes to their columns."""
    rows, columns = weights.shape
    given = np.ones(rows, np.float32) if scales is None and values == "int8" else scales
    sparse = _kernels.SparseWeights.from_dense(rows, columns, weights)
    return _kernels.PackedRows(sparse, values, given, isa="avx512", extension=extension, **more)


@pytest.mark.parametrize(("isa", "extension"), VARIANTS)
@settings(max_examples=24, deadline=None)
@given(
    m=st.integers(1, 17) | st.sampled_from((40, 70, 300)),
    rows=st.sampled_from((16, 32, 45, 64, 79, 160)),
    columns=st.sampled_from((300, 640, 1100, 1111, 9000)),
    density=st.sampled_from((0.0, 0.001, 0.02, 0.05, 0.08)),
    layout=st.sampled_from(("planes", "images16")),
    gap=st.booleans(),
    values=st.sampled_from(("int8", "float32", "bfloat16", "float16")),
    seed=st.integers(0, 99),
)
def test_products_agree_with_numpy(
    pool: _kernels.ThreadPool,
    isa: str,
    extension: str,
    m: int,
    rows: int,
    columns: int,
    density: float,
    layout: str,
    gap: bool,
    values: str,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    weights = sparse_integers(rng, (rows, columns), density)
    weights[:, columns - 1] = np.where(rng.random(rows) < 0.2, 3, weights[:, columns - 1])
    weights[rng.random(rows) < 0.05] = 0
    if gap:  # wider than a window moves at once, where there are 9000 columns
        weights[:, columns // 4 : -columns // 4] = 0
    scales = rng.uniform(0.01, 0.02, rows).astype(np.float32)
    made = packed(weights, scales, values=values)
    # Of floats, few rows or unlike ones take fewer bytes in another form.
    assert made.form == "windows" or values != "int8"
    x = random_array(rng, (m, columns))
    bias = random_array(rng, (rows,))
    second = random_array(rng, (m, rows)) if seed % 2 else None
    op = _kernels.Matmul(made, bias, layout=layout, isa=isa, extension=extension)
    expected = x.astype(np.float64) @ (weights.T.astype(np.float64) * scales) + bias
    assert_close(product(pool, op, x, second), expected + (0 if second is None else second), columns)


@pytest.mark.parametrize("extension", ["none", "vnni", "vbmi2", "amx"])
def test_a_row_of_activations_has_the_same_bits_in_any_batch(pool: _kernels.ThreadPool, extension: str) -> None:
    rng = np.random.default_rng(0)
    op = _kernels.Matmul(packed(sparse_integers(rng, (64, 1100), 0.07)), extension=extension)
    x = random_array(rng, (16, 1100))
    whole = product(pool, op, x)
    for m in range(1, 16):
        np.testing.assert_array_equal(product(pool, op, x[:m]), whole[:m])


@pytest.mark.parametrize(("isa", "extension"), VARIANTS)
@pytest.mark.parametrize("values", ["int8", "float32"])
@pytest.mark.parametrize("m", [1, 3, 12])
def test_pruned_weights_do_not_meet_infinite_activations(
    pool: _kernels.ThreadPool, isa: str, extension: str, m: int, values: str
) -> None:
    rng = np.random.default_rng(0)
    weights = sparse_integers(rng, (48, 640), 0.1)
    weights[:, [5, 7]] = 0
    weights[1, 5] = 3
    weights[2, 7] = -4
    x = random_array(rng, (m, 640))
    x[0, 5], x[m - 1, 7] = np.inf, np.nan
    made = packed(weights, values=values)
    assert made.form == "windows"
    y = product(pool, _kernels.Matmul(made, isa=isa, extension=extension), x)
    with np.errstate(invalid="ignore"):
        terms = np.where(weights == 0, 0, weights * x[:, None, :])
    np.testing.assert_allclose(y, terms.sum(axis=2, dtype=np.float64), rtol=1e-4, atol=1e-3)


@settings(max_examples=24, deadline=None)
@given(
    rows=st.sampled_from((16, 45, 80)), columns=st.sampled_from((300, 1100, 9000)),
    density=st.sampled_from((0.0, 0.01, 0.06)), zeros=st.sampled_from((0.0, 0.3)), seed=st.integers(0, 99),
)  # fmt: skip
def test_weights_come_back_with_zeros_that_are_active(
    rows: int, columns: int, density: float, zeros: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((rows, columns)) < density
    values = rng.integers(-128, 128, mask.sum()).astype(np.float32)
    values[rng.random(values.size) < zeros] = 0
    counts = mask.sum(axis=1).astype(np.uint32)
    listed = np.nonzero(mask)[1].astype(np.uint32)
    sparse = _kernels.SparseWeights.from_rows(rows, columns, counts, listed, values)
    scales = rng.uniform(0.01, 0.02, rows).astype(np.float32)
    made = _kernels.PackedRows(sparse, "int8", scales, isa="avx512", extension="none")
    assert (made.form, made.nnz) == ("windows", values.size)
    stored = made.stored()
    for one, other in zip(stored, (counts, listed, values, scales), strict=False):
        np.testing.assert_array_equal(one, other)
    assert stored[4] == 0
    expected = np.repeat(scales, counts) * values
    np.testing.assert_array_equal(made.source().stored()[2], expected)


@pytest.mark.parametrize("values", ["float32", "bfloat16", "float16"])
def test_floats_come_back(values: str) -> None:
    rng = np.random.default_rng(0)
    weights = sparse_integers(rng, (45, 1100), 0.06)  # which all types hold
    made = packed(weights, values=values)
    assert made.form == "windows"
    stored = made.source().stored()
    np.testing.assert_array_equal(stored[0], np.count_nonzero(weights, axis=1))
    np.testing.assert_array_equal(stored[1], np.nonzero(weights)[1])
    np.testing.assert_array_equal(stored[2], weights[weights != 0])


@pytest.mark.parametrize("values", ["int8", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("extension", ["none", "vbmi2", "amx"])
def test_they_are_chosen_where_they_take_little_more_than_bits_and_values(values: str, extension: str) -> None:
    rng = np.random.default_rng(0)
    few = sparse_integers(rng, (64, 2048), 0.08)
    made = packed(few, values=values, extension=extension)
    assert made.form == "windows"
    value_bytes = {"int8": 1, "float32": 4}.get(values, 2)
    assert made.nbytes < 1.35 * (few.size / 8 + value_bytes * np.count_nonzero(few))
    assert packed(sparse_integers(rng, (64, 2048), 0.4), values=values, extension=extension).form == "bitmap"


def test_they_are_not_chosen_for_what_lanes_would_leave_empty() -> None:
    rng = np.random.default_rng(0)
    few = sparse_integers(rng, (64, 2048), 0.1)
    uneven = few.copy()
    uneven[1::16] = 1
    single = sparse_integers(rng, (1, 2048), 0.1)
    for weights in (uneven, single):
        assert packed(weights).form == "bitmap"
    assert packed(single, values="float32").form == "list"
    assert packed(np.ones((16, 64), np.float32)).form == "dense"
    groups = np.ones((64, 32), np.float32)
    assert packed(few, groups, group=64).form == "bitmap"
    sparse = _kernels.SparseWeights.from_dense(64, 2048, few)
    for isa in _kernels.supported_isas():
        form = _kernels.PackedRows(sparse, "int8", np.ones(64, np.float32), isa=isa, extension="none").form
        assert form == {"avx512": "windows", "avx2": "list"}.get(isa, "bitmap")


@pytest.mark.parametrize("m", [1, 7, 100])
def test_any_number_of_threads_writes_the_same_bits(m: int) -> None:
    rng = np.random.default_rng(0)
    x = random_array(rng, (m, 700))
    op = _kernels.Matmul(packed(sparse_integers(rng, (301, 700), 0.07)))
    one, three = (product(_kernels.ThreadPool(threads), op, x) for threads in (1, 3))
    np.testing.assert_array_equal(one, three)


@pytest.mark.parametrize(("extension", "error"), [("none", 6e-7), ("vnni", 6e-7), ("vbmi2", 3e-7), ("amx", 3e-7)])
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e30])
def test_products_follow_the_magnitude_of_activations(
    pool: _kernels.ThreadPool, extension: str, error: float, scale: float
) -> None:
    """Sums of floats, or of integers, which are exact."""
    rng = np.random.default_rng(0)
    weights = sparse_integers(rng, (64, 4096), 0.1)
    x = random_array(rng, (3, 4096)) * np.float32(scale)
    x[1] = 0
    op = _kernels.Matmul(packed(weights, np.full(64, 0.01, np.float32)), extension=extension)
    y = product(pool, op, x)
    expected = x.astype(np.float64) @ (weights.T.astype(np.float64) * np.float32(0.01))
    magnitude = np.abs(x).max(axis=1, keepdims=True) * np.linalg.norm(weights * 0.01, axis=1)
    assert (np.abs(y - expected) <= error * magnitude + 1e-38).all()


@pytest.mark.parametrize("extension", ["none", "vnni", "vbmi2", "amx"])
@pytest.mark.parametrize("m", [1, 3, 8, 11, 16, 40])
@pytest.mark.parametrize("columns", [300, 4096])
def test_one_large_activation_costs_the_others_no_digits(
    pool: _kernels.ThreadPool, extension: str, m: int, columns: int
) -> None:
    rng = np.random.default_rng(0)
    weights = sparse_integers(rng, (48, columns), 0.08)
    weights[:, 5] = 0
    x = random_array(rng, (m, columns))
    x[m - 1, 5] = 3000
    made = packed(weights)
    assert made.form == "windows"
    y = product(pool, _kernels.Matmul(made, extension=extension), x)
    expected = x.astype(np.float64) @ weights.T.astype(np.float64)
    assert (np.abs(y - expected) <= 2e-5 * np.linalg.norm(weights, axis=1)).all()


@pytest.mark.parametrize(("isa", "extension"), VARIANTS)
@pytest.mark.parametrize("layout", ["planes", "images16"])
def test_whole_numbers_have_exact_products(pool: _kernels.ThreadPool, isa: str, extension: str, layout: str) -> None:
    rng = np.random.default_rng(0)
    weights = sparse_integers(rng, (45, 1100), 0.08)
    x = rng.integers(-60, 61, (300, 1100)).astype(np.float32)
    made = packed(weights)
    assert made.form == "windows"
    op = _kernels.Matmul(made, layout=layout, isa=isa, extension=extension)
    for m in (1, 2, 4, 7, 16, 17, 40, 300):
        np.testing.assert_array_equal(product(pool, op, x[:m]), x[:m] @ weights.T)
