from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import ACTIVATIONS, activate, assert_close, random_array, random_sparse, run

from sift_onnx.backends.cpu import _kernels

ISAS = _kernels.supported_isas()


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 70),
    rows=st.integers(1, 90),
    columns=st.integers(1, 300),
    density=st.sampled_from((0.0, -1.0, 0.05, 0.3, 1.0)),
    activation=st.sampled_from(ACTIVATIONS),
    has_bias=st.booleans(),
    has_second=st.booleans(),
)
def test_every_matrix_product_agrees_with_numpy(
    pool: _kernels.ThreadPool,
    isa: str,
    m: int,
    rows: int,
    columns: int,
    density: float,
    activation: tuple[str, float, float],
    has_bias: bool,
    has_second: bool,
) -> None:
    rng = np.random.default_rng(m)
    x = random_array(rng, (m, columns, 1, 1))
    weights = random_sparse(rng, (rows, columns), density)
    bias = random_array(rng, (rows,)) if has_bias else None
    second = random_array(rng, (m, rows, 1, 1)) if has_second else None
    expected = x[:, :, 0, 0].astype(np.float64) @ weights.T.astype(np.float64)
    if bias is not None:
        expected += bias
    if second is not None:
        expected += second[:, :, 0, 0]
    sparse = _kernels.SparseWeights.from_dense(rows, columns, weights)
    op = _kernels.Matmul(sparse, bias, activation=activation, isa=isa)
    assert_close(run(pool, op, x, second), activate(expected, activation)[:, :, None, None], columns)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("m", [1, 3, 20])
def test_columns_beyond_16_bits_are_taken_in_slices(pool: _kernels.ThreadPool, isa: str, m: int) -> None:
    rng = np.random.default_rng(0)
    columns = 2 * 65536 + 17
    x = random_array(rng, (m, columns, 1, 1))
    indices = np.unique(np.concatenate([rng.integers(0, 3 * columns, 5000), [65535, 65536, columns - 1, columns]]))
    values = random_array(rng, indices.shape)
    dense = np.zeros(3 * columns)
    dense[indices] = values
    op = _kernels.Matmul(_kernels.SparseWeights.from_indices(3, columns, indices, values), isa=isa)
    expected = x[:, :, 0, 0].astype(np.float64) @ dense.reshape(3, columns).T
    assert_close(run(pool, op, x), expected[:, :, None, None], columns)


def test_an_input_of_other_width_is_refused() -> None:
    op = _kernels.Matmul(_kernels.SparseWeights.from_dense(2, 3, np.ones(6, np.float32)))
    with pytest.raises(ValueError, match=r"columns of the weights"):
        op.output_shape((4, 5, 1, 1))


@pytest.mark.parametrize("sizes", [(1, 20, 5), (20, 1, 40), (3, 2, 70)])
def test_weights_are_packed_anew_from_the_packed_form(pool: _kernels.ThreadPool, sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    columns = 65536 + 40
    indices = np.unique(np.concatenate([rng.integers(0, 9 * columns, 3000), [65535, 65536, columns - 1, columns]]))
    source = _kernels.SparseWeights.from_indices(9, columns, indices, random_array(rng, indices.shape))
    kept = _kernels.Matmul(source)
    released = _kernels.Matmul(source)
    for m in sizes:
        x = random_array(rng, (m, columns, 1, 1))
        np.testing.assert_array_equal(run(pool, released, x), run(pool, kept, x))
        assert released.weight_bytes >= 6 * source.nnz
    unpacked = _kernels.Matmul(released.source())
    np.testing.assert_array_equal(run(pool, unpacked, x), run(pool, kept, x))
    assert source.nbytes >= 8 * source.nnz


def test_a_bias_of_other_length_is_refused() -> None:
    with pytest.raises(ValueError, match="one bias per row"):
        _kernels.Matmul(_kernels.SparseWeights.from_dense(2, 3, np.ones(6, np.float32)), np.zeros(3, np.float32))
