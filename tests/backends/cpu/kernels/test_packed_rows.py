"""Weights of matrix products in one packed form: against numpy, for each type of values and instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import assert_close, random_array, random_sparse, run

from sift_onnx.backends.cpu import _kernels

# With and without instructions beyond the instruction set.
VARIANTS = [(isa, False) for isa in _kernels.supported_isas()] + [("", True)]
Floats = np.ndarray


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


def integers(rng: np.random.Generator, shape: tuple[int, int], density: float) -> Floats:
    weights = rng.integers(-128, 128, shape).astype(np.float32)
    weights[rng.random(shape) >= density] = 0
    return weights


def product(pool: _kernels.ThreadPool, op: _kernels.Matmul, x: Floats, layout: str) -> Floats:
    return run(pool, op, x[:, :, None, None], layout=layout)[:, :, 0, 0] if layout != "planes" else run(
        pool, op, x[:, :, None, None]
    )[:, :, 0, 0]  # fmt: skip


@pytest.mark.parametrize(("isa", "extended"), VARIANTS)
@settings(max_examples=40, deadline=None)
@given(
    m=st.sampled_from((1, 2, 3, 4, 5, 9, 15, 16, 17, 40, 130, 300)),
    rows=st.integers(1, 70),
    columns=st.sampled_from((1, 15, 16, 63, 64, 65, 128, 192, 300)),
    density=st.sampled_from((0.0, 0.05, 0.3, 0.5, 1.0)),
    values=st.sampled_from(("float32", "bfloat16", "float16", "int8")),
    group=st.sampled_from((0, 16, 32, 64, 128)),
    layout=st.sampled_from(("planes", "images16")),
)
def test_products_agree_with_numpy(
    pool: _kernels.ThreadPool,
    isa: str,
    extended: bool,
    m: int,
    rows: int,
    columns: int,
    density: float,
    values: str,
    group: int,
    layout: str,
) -> None:
    rng = np.random.default_rng(m * rows + columns)
    x = random_array(rng, (m, columns))
    scales = None
    if values == "int8":
        weights = integers(rng, (rows, columns), density)
        groups = -(-columns // group) if group else 1
        scales = rng.uniform(0.01, 0.02, (rows, groups)).astype(np.float32)
        by_column = np.repeat(scales, group or columns, axis=1)[:, :columns]
        exact = weights.astype(np.float64) * by_column
    else:
        group = 0
        weights = rounded(random_sparse(rng, (rows, columns), density), values)
        exact = weights.astype(np.float64)
    sparse = _kernels.SparseWeights.from_dense(rows, columns, weights)
    packed = _kernels.PackedRows(sparse, values, scales, group)
    bias = random_array(rng, (rows,))
    op = _kernels.Matmul(packed, bias, layout=layout, isa=isa, extended=extended)
    expected = x.astype(np.float64) @ exact.T + bias
    assert_close(product(pool, op, x, layout), expected, columns)
