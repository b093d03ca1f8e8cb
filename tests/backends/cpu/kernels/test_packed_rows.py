"""Weights of matrix products in one packed form: against numpy, for each type of values and instruction set."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import assert_close, product, random_array, random_sparse, sparse_integers

from sift_onnx.backends.cpu import _kernels

# With and without instructions beyond the instruction set.
VARIANTS = [*((isa, "none") for isa in _kernels.supported_isas()), ("", "vnni"), ("", "vbmi2"), ("", "amx")]
Floats = np.ndarray
STATUS = Path("/proc/self/status")


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


def rounded(weights: Floats, values: str) -> Floats:
    """Weights as 16 bits hold them."""
    if values == "float16":
        return weights.astype(np.float16).astype(np.float32)
    if values == "bfloat16":
        bits = weights.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return weights


@pytest.mark.parametrize(("isa", "extension"), VARIANTS)
@settings(max_examples=24, deadline=None)
@given(
    m=st.integers(1, 17) | st.sampled_from((24, 40, 70, 100, 300)),
    rows=st.integers(1, 70),
    columns=st.sampled_from((1, 15, 16, 63, 64, 65, 128, 300, 1100)),
    density=st.sampled_from((0.0, 0.001, 0.1, 0.3, 0.5, 0.7, 1.0)),
    values=st.sampled_from(("float32", "bfloat16", "float16", "int8")),
    group=st.sampled_from((0, 16, 32, 48, 64, 80, 128)),
    layout=st.sampled_from(("planes", "images16")),
    scaled=st.booleans(),
)
def test_products_agree_with_numpy(
    pool: _kernels.ThreadPool,
    isa: str,
    extension: str,
    m: int,
    rows: int,
    columns: int,
    density: float,
    values: str,
    group: int,
    layout: str,
    scaled: bool,
) -> None:
    rng = np.random.default_rng(m * rows + columns)
    x = random_array(rng, (m, columns))
    scales = None
    if values == "int8":
        weights = sparse_integers(rng, (rows, columns), density)
        groups = -(-columns // group) if group else 1
        scales = rng.uniform(0.01, 0.02, (rows, groups)).astype(np.float32)
        by_column = np.repeat(scales, group or columns, axis=1)[:, :columns]
        exact = weights.astype(np.float64) * by_column
    else:
        group = 0
        weights = rounded(random_sparse(rng, (rows, columns), density), values)
        exact = weights.astype(np.float64)
        if scaled:
            scales = rng.uniform(0.01, 0.02, (rows, 1)).astype(np.float32)
            exact *= scales
    sparse = _kernels.SparseWeights.from_dense(rows, columns, weights)
    packed = _kernels.PackedRows(sparse, values, scales, group)
    bias = random_array(rng, (rows,))
    second = random_array(rng, (m, rows)) if m % 2 else None
    op = _kernels.Matmul(packed, bias, layout=layout, isa=isa, extension=extension)
    expected = x.astype(np.float64) @ exact.T + bias
    assert_close(product(pool, op, x, second), expected + (0 if second is None else second), columns)


def packed(weights: Floats, values: str = "float32", **scales: object) -> _kernels.PackedRows:
    return _kernels.PackedRows(_kernels.SparseWeights.from_dense(*weights.shape, weights), values, **scales)


@pytest.mark.parametrize(("isa", "extension"), VARIANTS)
@pytest.mark.parametrize(("values", "group"), [("bfloat16", 0), ("int8", 0), ("int8", 48)])
def test_sparse_rows_have_the_same_products_in_any_batch(
    pool: _kernels.ThreadPool, isa: str, extension: str, values: str, group: int
) -> None:
    """Where weights become lists: slices of several words, rows without weights, and a row of weights alone."""
    rng = np.random.default_rng(0)
    rows, columns = 41, 2501
    weights = sparse_integers(rng, (rows, columns), 0.08)
    weights[[0, 7, 40]] = 0
    weights[5] = rng.integers(1, 128, columns)
    scales = rng.uniform(0.01, 0.02, (rows, -(-columns // group) if group else 1)).astype(np.float32)
    exact = weights.astype(np.float64)
    if values == "int8":
        exact *= np.repeat(scales, group or columns, axis=1)[:, :columns]
    bias = random_array(rng, (rows,))
    made = packed(weights, values, scales=scales if values == "int8" else None, group=group)
    op = _kernels.Matmul(made, bias, isa=isa, extension=extension)
    x = random_array(rng, (17, columns))
    expected = x.astype(np.float64) @ exact.T + bias
    for m in range(1, 18):
        assert_close(product(pool, op, x[:m]), expected[:m], columns)


@pytest.mark.skipif("avx2" not in _kernels.supported_isas(), reason="no other kernels have lists of bytes")
@pytest.mark.parametrize(("isa", "extension"), VARIANTS)
@pytest.mark.parametrize("columns", [300, 70_000])  # one slice of columns, and two
@pytest.mark.parametrize("density", [0.0004, 0.15])
@pytest.mark.parametrize("scaled", [False, True])
def test_lists_of_bytes_serve_all_kernels(
    pool: _kernels.ThreadPool, isa: str, extension: str, columns: int, density: float, scaled: bool
) -> None:
    rng = np.random.default_rng(columns)
    rows = 9
    weights = sparse_integers(rng, (rows, columns), density)
    weights[3] = 0
    scales = rng.uniform(0.01, 0.02, rows).astype(np.float32) if scaled else None
    if not scaled:
        weights = np.maximum(weights, -127)
        weights[np.arange(rows), 5] = 127  # the largest of each row, so that its scale is 1
    made = packed(weights, "int8", scales=scales, isa="avx2")
    assert made.form == "list"
    exact = weights.astype(np.float64) * (1 if scales is None else scales[:, None])
    counts, listed, values = made.source().stored()
    np.testing.assert_array_equal(counts, np.count_nonzero(weights, axis=1))
    np.testing.assert_array_equal(listed, weights.nonzero()[1])
    np.testing.assert_allclose(values, exact[weights.nonzero()], rtol=1e-6)
    bias = random_array(rng, (rows,))
    x = random_array(rng, (20, columns))
    expected = x.astype(np.float64) @ exact.T + bias
    for layout in ("planes", "images16"):
        op = _kernels.Matmul(made, bias, layout=layout, isa=isa, extension=extension)
        for m in (1, 3, 8, 13, 20):
            assert_close(product(pool, op, x[:m]), expected[:m], columns)


@pytest.mark.parametrize(("isa", "extension"), VARIANTS)
def test_the_last_group_of_a_row_keeps_to_its_scale(pool: _kernels.ThreadPool, isa: str, extension: str) -> None:
    weights = np.ones((2, 65), np.float32)
    scales = np.ones((2, 5), np.float32)
    scales[1] = np.inf
    op = _kernels.Matmul(packed(weights, "int8", scales=scales, group=16), isa=isa, extension=extension)
    for m in (1, 2, 9):
        y = product(pool, op, np.ones((m, 65), np.float32))
        assert (y[:, 0] == 65).all()


# Kernels of AVX-512 may prefer another form of int8 (test_windowed_rows.py).
@pytest.mark.parametrize("isa", [isa for isa in _kernels.supported_isas() if isa in ("avx2", "neon")])
def test_forms_and_their_bytes(isa: str) -> None:
    rng = np.random.default_rng(0)
    for density, values, form, size in (
        (0.5, "float32", "bitmap", 1 / 8 + 4 * 0.5),
        (0.1, "float32", "list", 6 * 0.1),
        (0.3, "float32", *(("list", 6 * 0.3) if isa == "avx2" else ("bitmap", 1 / 8 + 4 * 0.3))),
        (0.1, "int8", *(("list", 3 * 0.1) if isa == "avx2" else ("bitmap", 1 / 8 + 0.1))),
        (0.25, "int8", "bitmap", 1 / 8 + 0.25),
        (0.5, "bfloat16", "bitmap", 1 / 8 + 2 * 0.5),
        (1.0, "float16", "dense", 2.0),
        (1.0, "int8", "dense", 1.0),
    ):
        weights = random_sparse(rng, (64, 2048), 1.0) + 10
        weights[rng.random(weights.shape) >= density] = 0
        made = packed(weights, values, isa=isa)
        assert (made.form, made.values, made.nnz) == (form, values, np.count_nonzero(weights))
        # Besides: where each row begins, its scale and sum, bounds of ranges.
        assert 0.95 * size < made.nbytes / weights.size < 1.05 * size + 24 * 64 / weights.size


@pytest.mark.parametrize("values", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("density", [0.05, 0.4, 1.0])
def test_what_a_type_holds_comes_back_with_the_same_bits(
    pool: _kernels.ThreadPool, values: str, density: float
) -> None:
    rng = np.random.default_rng(0)
    weights = rounded(random_sparse(rng, (20, 192), density), values)
    eye = np.eye(192, dtype=np.float32)
    np.testing.assert_array_equal(product(pool, _kernels.Matmul(packed(weights, values).source()), eye), weights.T)


def test_numbers_round_to_the_nearest_and_ties_to_even() -> None:
    rng = np.random.default_rng(0)
    exact = np.concatenate([
        random_array(rng, (500,)) * np.float32(10.0) ** rng.integers(-9, 4, 500),
        [1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 3 * 2**-25, 65504, 2**-14 - 2**-26, 1 + 2**-8, 1 + 3 * 2**-8, -(2.0**-24)],
    ]).astype(np.float32)  # fmt: skip
    weights = np.zeros((1, 576), np.float32)
    weights[0, : exact.size] = exact
    eye = np.eye(576, dtype=np.float32)
    for values in ("float16", "bfloat16"):
        back = product(_kernels.ThreadPool(1), _kernels.Matmul(packed(weights, values)), eye)[:, 0]
        np.testing.assert_array_equal(back, rounded(weights, values)[0])


def test_int8_without_scales_gets_one_per_row(pool: _kernels.ThreadPool) -> None:
    rng = np.random.default_rng(0)
    weights = random_sparse(rng, (30, 256), 0.4) * np.float32(10.0) ** rng.integers(-30, 3, (30, 1))
    weights[3] = 0
    back = product(pool, _kernels.Matmul(packed(weights, "int8")), np.eye(256, dtype=np.float32)).T
    most = np.abs(weights).max(axis=1, keepdims=True)
    assert (np.abs(back - weights) <= most * (0.5 / 127 * 1.001)).all()


def test_large_weights_stay_float32_where_float16_does_not_reach() -> None:
    weights = np.full((2, 64), 70000, np.float32)
    assert packed(weights, "float16").values == "float32"


@pytest.mark.parametrize(("isa", "extension"), VARIANTS)
@pytest.mark.parametrize("values", ["float32", "bfloat16", "float16", "int8"])
def test_pruned_weights_do_not_meet_infinite_activations(
    pool: _kernels.ThreadPool, isa: str, extension: str, values: str
) -> None:
    rng = np.random.default_rng(0)
    weights = sparse_integers(rng, (9, 192), 0.4)
    weights[0, :64] = 0
    weights[1, 5] = 3
    x = random_array(rng, (2, 192))
    x[0, 5], x[1, 7] = np.inf, np.nan
    scales = np.ones(9, np.float32) if values == "int8" else None
    y = product(pool, _kernels.Matmul(packed(weights, values, scales=scales), isa=isa, extension=extension), x)
    assert np.isfinite(y[:, 0]).all()
    assert y[0, 1] == np.inf
    with np.errstate(invalid="ignore"):
        expected = np.where(weights == 0, 0, weights * x[:, None, :]).sum(axis=2, dtype=np.float64)
    np.testing.assert_allclose(y, expected, rtol=1e-4)


@pytest.mark.parametrize(("isa", "extension"), VARIANTS)
@pytest.mark.parametrize("values", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("m", [40, 100, 600])
def test_nor_do_they_among_many_rows(pool: _kernels.ThreadPool, isa: str, extension: str, values: str, m: int) -> None:
    """Where few of the weights are zero, kernels of dense rows are faster; they would multiply these as well."""
    rng = np.random.default_rng(0)
    weights = sparse_integers(rng, (9, 192), 0.8)
    weights[0, :64] = 0
    weights[1, 5] = 3
    x = random_array(rng, (m, 192))
    expected = x.astype(np.float64) @ weights.T
    scales = np.ones(9, np.float32) if values == "int8" else None
    op = _kernels.Matmul(packed(weights, values, scales=scales), isa=isa, extension=extension)
    assert_close(product(pool, op, x), expected, 192)
    x[33, 5], x[m - 1, 7] = np.inf, np.nan
    y = product(pool, op, x)
    assert np.isfinite(y[:, 0]).all()
    assert y[33, 1] == np.inf
    rest = np.delete(np.arange(m), [33, m - 1])
    assert_close(y[rest], expected[rest], 192)


@pytest.mark.parametrize("extension", ["none", "vnni", "vbmi2", "amx"])
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e30])
@pytest.mark.parametrize("m", [3, 9])
@pytest.mark.parametrize("group", [0, 64])
def test_integer_products_follow_the_magnitude_of_activations(
    pool: _kernels.ThreadPool, extension: str, scale: float, m: int, group: int
) -> None:
    rng = np.random.default_rng(0)
    weights = sparse_integers(rng, (9, 4096), 0.5)
    x = random_array(rng, (m, 4096)) * np.float32(scale)
    x[1] = 0
    scales = np.full((9, 4096 // group if group else 1), 0.01, np.float32)
    op = _kernels.Matmul(packed(weights, "int8", scales=scales, group=group), extension=extension)
    y = product(pool, op, x)
    expected = x.astype(np.float64) @ (weights.T.astype(np.float64) * np.float32(0.01))
    magnitude = np.abs(x).max(axis=1, keepdims=True) * np.linalg.norm(weights * 0.01, axis=1)
    # Sums with scales of groups are floats in all kernels, and round more.
    assert (np.abs(y - expected) <= (6e-7 if group else 3e-7) * magnitude + 1e-38).all()


@pytest.mark.parametrize("extension", ["none", "vnni", "vbmi2", "amx"])
@pytest.mark.parametrize("m", [3, 8, 11, 16, 40, 75])  # of many rows, some have larger activations than others
@pytest.mark.parametrize("columns", [300, 4096])
def test_one_large_activation_costs_the_others_no_digits(
    pool: _kernels.ThreadPool, extension: str, m: int, columns: int
) -> None:
    rng = np.random.default_rng(0)
    weights = sparse_integers(rng, (9, columns), 0.5)
    weights[:, 5] = 0
    x = random_array(rng, (m, columns))
    x[m - 1, 5] = 3000
    op = _kernels.Matmul(packed(weights, "int8", scales=np.ones(9, np.float32)), extension=extension)
    y = product(pool, op, x)
    expected = x.astype(np.float64) @ weights.T.astype(np.float64)
    assert (np.abs(y - expected) <= 2e-5 * np.linalg.norm(weights, axis=1)).all()


@pytest.mark.parametrize(("isa", "extension"), VARIANTS)
@pytest.mark.parametrize("values", ["float32", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("columns", [40, 1100, 4500])  # one slice of a group's columns, two, and many short ones
def test_whole_numbers_have_exact_products_with_any_rows_beside_them(
    pool: _kernels.ThreadPool, isa: str, extension: str, values: str, columns: int
) -> None:
    """Rows of activations are in groups of four and eight, with zeros for those that are not there."""
    rng = np.random.default_rng(0)
    weights = sparse_integers(rng, (37, columns), 0.4)
    x = rng.integers(-60, 61, (16, columns)).astype(np.float32)
    scales = np.ones(37, np.float32) if values == "int8" else None
    op = _kernels.Matmul(packed(weights, values, scales=scales), isa=isa, extension=extension)
    for m in (1, 3, 4, 5, 7, 8, 11, 14, 16):
        np.testing.assert_array_equal(product(pool, op, x[:m]), x[:m] @ weights.T)


@pytest.mark.parametrize(("isa", "extension"), VARIANTS)
@pytest.mark.parametrize("rows", [1, 15, 17, 32, 33, 70])
@pytest.mark.parametrize("m", [17, 31, 64, 65, 130])
@pytest.mark.parametrize("density", [0.4, 1.0])
@pytest.mark.parametrize("layout", ["planes", "images16"])
def test_whole_numbers_have_exact_products_with_many_rows(
    pool: _kernels.ThreadPool, isa: str, extension: str, rows: int, m: int, density: float, layout: str
) -> None:
    """Blocks of weights and activations that are not whole, of more words than are brought to columns at a time."""
    rng = np.random.default_rng(0)
    weights = sparse_integers(rng, (rows, 640), density)
    x = rng.integers(-60, 61, (m, 640)).astype(np.float32)
    bias = rng.integers(-9, 10, rows).astype(np.float32)
    second = rng.integers(-9, 10, (m, rows)).astype(np.float32)
    made = packed(weights, "int8", scales=np.ones(rows, np.float32))
    op = _kernels.Matmul(made, bias, layout=layout, isa=isa, extension=extension)
    np.testing.assert_array_equal(product(pool, op, x, second), x @ weights.T + bias + second)


@pytest.mark.parametrize("layout", ["planes", "images16"])
@pytest.mark.parametrize("m", [1, 7, 16, 100])
@pytest.mark.parametrize("values", ["float32", "int8"])
@pytest.mark.parametrize("density", [0.13, 0.3, 0.6])
def test_any_number_of_threads_writes_the_same_bits(layout: str, m: int, values: str, density: float) -> None:
    rng = np.random.default_rng(0)
    x = random_array(rng, (m, 700))
    made = packed(random_sparse(rng, (301, 700), density), values)
    one, three = (product(_kernels.ThreadPool(threads), _kernels.Matmul(made, layout=layout), x) for threads in (1, 3))
    np.testing.assert_array_equal(one, three)


@pytest.mark.skipif(not STATUS.exists(), reason="needs /proc")
def test_memory_goes_back_to_the_system_with_the_last_weights_in_it() -> None:
    def anonymous() -> int:
        return int(re.search(r"RssAnon:\s*(\d+)", STATUS.read_text("ascii"))[1]) << 10

    sparse = _kernels.SparseWeights.from_dense(64, 1 << 14, np.ones((64, 1 << 14), np.float32))
    before = anonymous()
    made = [_kernels.PackedRows(sparse, "float32") for _ in range(12)]
    size = sum(one.nbytes for one in made)
    assert anonymous() - before > 0.9 * size
    del made[3:9]
    assert anonymous() - before < 0.8 * size
    made.clear()
    assert anonymous() - before < 0.2 * size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": "int4"}, "type of values"),
        ({"values": "int8", "scales": np.ones(4, np.float32)}, "one scale per row"),
        ({"values": "int8", "scales": np.ones(6, np.float32), "group": 24}, "multiple of 16"),
        ({"values": "float32", "scales": np.ones(6, np.float32), "group": 32}, "only int8"),
        ({"values": "int8", "scales": np.ones(3, np.float32)}, "whole numbers"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, object], message: str) -> None:
    weights = np.full((3, 64), 0.5, np.float32)
    with pytest.raises(ValueError, match=message):
        packed(weights, **arguments)


def test_operators_share_their_weights(pool: _kernels.ThreadPool) -> None:
    made = packed(random_sparse(np.random.default_rng(0), (64, 512), 0.3))
    ops = [_kernels.Matmul(made, layout=layout) for layout in ("planes", "images16")]
    assert all(op.weight_bytes == 64 * 4 for op in ops)
