from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import assert_close, random_array, random_sparse, run

from sift_onnx.backends.cpu import _kernels


def product(weights: _kernels.SparseWeights, columns: int) -> np.ndarray:
    """The matrix, by multiplying it with the identity."""
    op = _kernels.Matmul(weights)
    identity = np.eye(columns, dtype=np.float32)[:, :, None, None]
    return run(_kernels.ThreadPool(1), op, identity)[:, :, 0, 0].T


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 70), columns=st.integers(1, 70), density=st.sampled_from((0.0, 0.1, 0.5, 0.9, 1.0)))
def test_a_transposed_matrix_gives_the_same_weights(rows: int, columns: int, density: float) -> None:
    dense = random_sparse(np.random.default_rng(rows), (rows, columns), density)
    weights = _kernels.SparseWeights.from_dense(rows, columns, np.ascontiguousarray(dense.T), transposed=True)
    assert np.array_equal(product(weights, columns), dense)
    assert np.array_equal(product(_kernels.SparseWeights.from_dense(rows, columns, dense), columns), dense)
    factors = random_array(np.random.default_rng(1), (rows,))
    assert_close(product(weights.scaled(factors), columns), dense * factors[:, None])


def test_few_zeros_are_not_worth_an_index() -> None:
    dense = np.ones((50, 40), np.float32)
    dense[0, :7] = 0
    assert _kernels.SparseWeights.from_dense(50, 40, dense).nbytes < 5 * dense.size


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 200000])
def test_counting_sees_every_value(size: int) -> None:
    values = np.zeros(size, np.float32)
    assert _kernels.count_weights(values) == (0, True)
    if size:
        values[-1] = -0.0
        assert _kernels.count_weights(values) == (0, True)
        values[-1] = 1e-45
        assert _kernels.count_weights(values) == (1, True)
        for strange in (np.nan, np.inf, -np.inf):
            values[-1] = strange
            assert _kernels.count_weights(values) == (1, False)


def test_factors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="one factor per row is needed: 2, and not 3"):
        _kernels.SparseWeights.from_dense(2, 3, np.ones(6, np.float32)).scaled(np.ones(3, np.float32))


@given(st.lists(st.integers(-3, 40), max_size=6))
def test_indices_must_ascend_within_the_matrix(indices: list[int]) -> None:
    values = np.ones(len(indices), np.float32)
    good = all(0 <= index < 35 for index in indices) and all(a < b for a, b in itertools.pairwise(indices))
    if good:
        weights = _kernels.SparseWeights.from_indices(5, 7, np.array(indices, np.int64), values)
        assert weights.nnz == len(indices)
    else:
        with pytest.raises(ValueError, match="ascend strictly"):
            _kernels.SparseWeights.from_indices(5, 7, np.array(indices, np.int64), values)


def test_indices_and_dense_values_are_the_same_weights() -> None:
    pool = _kernels.ThreadPool(2)
    rng = np.random.default_rng(6)
    dense = random_sparse(rng, (7, 11), 0.2)
    dense[3:5] = 0
    indices = np.flatnonzero(dense)
    x = random_array(rng, (20, 11, 1, 1))
    outputs = [
        run(pool, _kernels.Conv(weights), x)
        for weights in (
            _kernels.SparseWeights.from_dense(7, 11, dense),
            _kernels.SparseWeights.from_indices(7, 11, indices, dense.ravel()[indices]),
        )
    ]
    np.testing.assert_array_equal(*outputs)


def test_a_kernel_in_parts_still_has_its_source() -> None:
    weights = _kernels.SparseWeights.from_dense(1, 3600, np.ones(3600, np.float32))
    conv = _kernels.Conv(weights, kernel=(60, 60))
    assert conv.source().nnz == 3600
    conv.prepare((16, 1, 60, 60), 1)
    assert conv.release_source()
    assert conv.source().nnz == 3600
