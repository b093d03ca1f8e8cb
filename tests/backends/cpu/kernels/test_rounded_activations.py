"""Products of int8 weights whose activations may have 16 bits: against numpy, within the bound that is stated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import assert_close, product, random_array, sparse_integers

from sift_onnx.backends.cpu import _kernels

EXTENSIONS = ["none", "vnni", "vbmi2", "amx"]
MULTIPLIES_BYTES = "avx512" in _kernels.supported_isas() and "avx512_vnni" in _kernels.int8_isas()
Floats = np.ndarray


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


def rounding_product(
    weights: Floats, extension: str, bias: Floats | None = None, layout: str = "planes"
) -> _kernels.Matmul:
    sparse = _kernels.SparseWeights.from_dense(*weights.shape, weights)
    packed = _kernels.PackedRows(sparse, "int8", np.ones(len(weights), np.float32), extension=extension)
    return _kernels.Matmul(packed, bias, layout=layout, rounds_activations=True, extension=extension)


@pytest.mark.parametrize("extension", EXTENSIONS)
@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(1, 17) | st.sampled_from((24, 40, 75, 300)),
    rows=st.integers(1, 70),
    columns=st.sampled_from((16, 64, 65, 300, 1100, 4096)),
    density=st.sampled_from((0.0, 0.06, 0.3, 0.5, 1.0)),
    layout=st.sampled_from(("planes", "images16")),
    magnitude=st.sampled_from((1e-35, 1e-30, 1e-3, 1.0, 1e15)),
)
def test_an_activation_loses_at_most_a_half_of_a_step(
    pool: _kernels.ThreadPool,
    extension: str,
    m: int,
    rows: int,
    columns: int,
    density: float,
    layout: str,
    magnitude: float,
) -> None:
    rng = np.random.default_rng(m * rows + columns)
    weights = sparse_integers(rng, (rows, columns), density)
    x = random_array(rng, (m, columns)) * np.float32(magnitude)
    if m > 1:
        x[1] = 0
    bias = random_array(rng, (rows,)) * np.float32(magnitude)
    y = product(pool, rounding_product(weights, extension, bias, layout), x)
    expected = x.astype(np.float64) @ weights.T.astype(np.float64) + bias
    # Rounding errors are even between halves of a step. That of tiny numbers is a power of two, at least 2^-126.
    step = np.abs(x).max(axis=1, keepdims=True).astype(np.float64) / 32767
    if magnitude < 1e-30:
        step = np.maximum(2 * step, 2.0**-126)
    of_norm = np.linalg.norm(weights, axis=1) * step
    bound = np.minimum(np.abs(weights).sum(axis=1) * step / 2, 2 * of_norm)
    assert (np.abs(y - expected) <= bound + 0.02 * of_norm + 1e-5 * np.abs(expected) + 1e-38).all()


@pytest.mark.skipif(not MULTIPLIES_BYTES, reason="no instructions that multiply bytes")
@pytest.mark.parametrize("extension", EXTENSIONS[1:])
@pytest.mark.parametrize("m", [1, 2, 4, 8, 40])
def test_activations_become_multiples_of_a_step(pool: _kernels.ThreadPool, extension: str, m: int) -> None:
    weights = np.full((128, 128), 0, np.float32)
    np.fill_diagonal(weights, 1)
    weights[:, 1] = 1  # so that bits are taken, and no lists
    weights[:, 2:100] += 1
    x = random_array(np.random.default_rng(0), (m, 128))
    y = product(pool, rounding_product(weights, extension), x)
    step = np.abs(x).max(axis=1, keepdims=True).astype(np.float64) / 32767
    rounded = np.round(x / step) * step
    assert np.abs(rounded - x).max() > 1e-5
    assert_close(y, rounded @ weights.T.astype(np.float64), 1)


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("m", [1, 3, 8, 11, 40])
@pytest.mark.parametrize("density", [0.06, 0.5])  # windows, and bits
@pytest.mark.parametrize("large", [40, 3000])  # times the mean: three bytes, and four
def test_one_large_activation_is_not_rounded_to_16_bits(
    pool: _kernels.ThreadPool, extension: str, m: int, density: float, large: float
) -> None:
    rng = np.random.default_rng(0)
    weights = sparse_integers(rng, (32, 4096), density)
    weights[:, 5] = 0
    x = random_array(rng, (m, 4096))
    x[m - 1, 5] = large * np.abs(x[m - 1]).mean()
    y = product(pool, rounding_product(weights, extension), x)[m - 1]
    expected = x[m - 1].astype(np.float64) @ weights.T.astype(np.float64)
    # Beside it, 16 bits would lose ten times as much, or more.
    assert (np.abs(y - expected) <= 2e-5 * np.linalg.norm(weights, axis=1)).all()


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("m", [1, 3, 12])
@pytest.mark.parametrize("density", [0.06, 0.5])
def test_pruned_weights_do_not_meet_infinite_activations(
    pool: _kernels.ThreadPool, extension: str, m: int, density: float
) -> None:
    rng = np.random.default_rng(0)
    weights = sparse_integers(rng, (48, 640), density)
    weights[:, [5, 7]] = 0
    weights[1, 5] = 3
    x = random_array(rng, (m, 640))
    x[0, 5], x[m - 1, 7] = np.inf, np.nan
    y = product(pool, rounding_product(weights, extension), x)
    with np.errstate(invalid="ignore"):
        terms = np.where(weights == 0, 0, weights * x[:, None, :])
    np.testing.assert_allclose(y, terms.sum(axis=2, dtype=np.float64), rtol=1e-4, atol=1e-2)
