"""Fresh values: the energy of a feature, and where each draw comes from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_onnx.sparsity.draw import draw_dense, draw_sparse, draw_vector, energy_per_feature, neutral
from sift_onnx.sparsity.patterns.pattern import Pattern
from sift_onnx.weights.sparse import SparseWeight, generator

FLOAT = np.dtype(np.float32)


def energies(weight: SparseWeight | np.ndarray[Any, Any], out_axis: int) -> np.ndarray[Any, Any]:
    """Sum of squares of each output feature."""
    dense = weight.to_dense() if isinstance(weight, SparseWeight) else weight
    others = tuple(i for i in range(dense.ndim) if i != out_axis)
    return np.sum(np.square(dense.astype(np.float64)), axis=others)


# What the original says.


@pytest.mark.parametrize("out_axis", [0, 1])
def test_the_energy_of_a_weight_is_the_average_over_its_features(out_axis: int) -> None:
    weight = np.arange(24, dtype=np.float32).reshape(4, 6)
    expected = float(np.mean(energies(weight, out_axis)))
    assert energy_per_feature(weight, out_axis, rectified=True) == pytest.approx(expected)


def test_the_energy_of_a_masked_weight_is_that_of_its_active_weights() -> None:
    dense = np.zeros((3, 5), dtype=np.float32)
    dense[0, 1], dense[2, 4] = 3, 4
    assert energy_per_feature(SparseWeight.from_dense(dense), 0, rectified=False) == pytest.approx(25 / 3)


def test_squares_of_half_precision_do_not_overflow() -> None:
    weight = np.full((2, 100), 300, dtype=np.float16)
    weight[0, 0] = 299
    assert energy_per_feature(weight, 0, rectified=False) == pytest.approx(100 * 300**2, rel=1e-3)


@pytest.mark.parametrize(("rectified", "energy"), [(True, 2.0), (False, 1.0)])
def test_a_constant_has_no_law_and_gets_that_of_what_follows(rectified: bool, energy: float) -> None:
    """Kaiming's before a rectifier, else LeCun's."""
    assert energy_per_feature(np.full((4, 6), 0.5, dtype=np.float32), 0, rectified=rectified) == energy


@pytest.mark.parametrize("rectified", [True, False])
def test_a_zero_initialised_weight_stays_zero(rectified: bool) -> None:
    energy = energy_per_feature(np.zeros((4, 6), dtype=np.float32), 0, rectified=rectified)
    assert energy == 0
    assert not draw_dense("w", (8, 12), 0, energy, FLOAT, 0).any()
    weight = draw_sparse("w", (8, 12), 24, 0, energy, FLOAT, 0)
    assert weight.nnz == 24
    assert not weight.values.any()


def test_an_empty_weight_has_no_energy() -> None:
    assert energy_per_feature(np.zeros((0, 6), dtype=np.float32), 1, rectified=True) == 0


# What is drawn.


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.data(),
    st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_a_sparse_draw_has_exactly_the_shape_non_zeros_and_dtype_asked_for(
    shape: list[int], data: st.DataObject, dtype: Any
) -> None:
    nnz = data.draw(st.integers(0, math.prod(shape)))
    out_axis = data.draw(st.integers(0, len(shape) - 1))
    weight = draw_sparse("w", shape, nnz, out_axis, 2.0, np.dtype(dtype), data.draw(st.integers(0, 3)))
    assert (weight.shape, weight.nnz, weight.dtype) == (tuple(shape), nnz, dtype)
    assert np.all(weight.values != 0)
    dense = draw_dense("w", shape, out_axis, 2.0, np.dtype(dtype), 0)
    assert (dense.shape, dense.dtype) == (tuple(shape), dtype)


@pytest.mark.parametrize(
    ("shape", "out_axis"), [((64, 32, 3, 3), 0), ((96, 200), 1), ((16, 24, 5), 1), ((5, 7, 40), 2)]
)
@pytest.mark.parametrize("density", [0.1, 0.5, 1.0])
def test_each_feature_is_scaled_by_its_real_fan_in_under_the_mask(
    shape: tuple[int, ...], out_axis: int, density: float
) -> None:
    energy, size = 1.7, math.prod(shape)
    nnz = int(density * size)
    weight = draw_sparse("w", shape, nnz, out_axis, energy, FLOAT, 5)
    # As a single feature the same draws have one scale, which can be taken away.
    single = draw_sparse("w", (1, size), nnz, 0, 1.0, FLOAT, 5)
    assert np.array_equal(weight.indices, single.indices)
    standard = single.values * math.sqrt(nnz)
    assert standard.mean() == pytest.approx(0, abs=5 / math.sqrt(nnz))
    assert standard.var() == pytest.approx(1, abs=8 / math.sqrt(nnz))
    feature = np.unravel_index(weight.indices, shape)[out_axis]
    fan_in = np.bincount(feature, minlength=shape[out_axis])
    assert density == 1 or fan_in.min() < fan_in.max()
    assert np.allclose(weight.values, standard * np.sqrt(energy / fan_in[feature]), rtol=1e-5)


@pytest.mark.parametrize("out_axis", [0, 1])
def test_a_wider_and_sparser_layer_keeps_the_energy_of_its_features(out_axis: int) -> None:
    """The second moment of an output feature is its energy times that of the inputs, however many are active."""
    original = np.random.default_rng(0).normal(0, 0.07, (60, 80)).astype(np.float32)
    energy = energy_per_feature(original, out_axis, rectified=False)
    wide = draw_sparse("w", (190, 253), 4800, out_axis, energy, FLOAT, 0)
    assert energies(wide, out_axis).mean() == pytest.approx(energies(original, out_axis).mean(), rel=0.1)
    dense = draw_dense("w", (190, 253), out_axis, energy, FLOAT, 0)
    assert energies(dense, out_axis).mean() == pytest.approx(energies(original, out_axis).mean(), rel=0.03)


def test_a_feature_that_the_mask_leaves_without_inputs_is_no_trouble() -> None:
    weight = draw_sparse("w", (50, 4), 5, 0, 2.0, FLOAT, 0)
    assert np.count_nonzero(weight.counts_along(0)) <= 5
    assert np.isfinite(weight.values).all()


def test_a_draw_depends_on_seed_and_name_alone() -> None:
    def draw(name: str, seed: int) -> tuple[bytes, bytes, bytes]:
        weight = draw_sparse(name, (1, 1200), 120, 0, 2.0, FLOAT, seed)
        return (
            weight.indices.tobytes(),
            weight.values.tobytes(),
            draw_dense(name, (6, 5), 0, 2.0, FLOAT, seed).tobytes(),
        )

    first, second = draw("a", 0), draw("b", 0)
    np.random.default_rng().standard_normal(10)
    assert draw("b", 0) == second
    assert draw("a", 0) == first
    for other in (second, draw("a", 1)):
        assert all(mine != theirs for mine, theirs in zip(first, other, strict=True))


def test_mask_and_values_are_drawn_apart() -> None:
    """Another number of non-zeros moves the mask, not the stream of values."""
    few, more = (draw_sparse("w", (1, 1000), n, 0, 1.0, FLOAT, 0) for n in (100, 200))
    assert np.allclose(few.values * math.sqrt(100), (more.values * math.sqrt(200))[:100], rtol=1e-5)


def test_an_active_weight_is_not_zero_even_where_the_generator_gives_a_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zeros:
        def standard_normal(self, count: int, dtype: Any) -> np.ndarray[Any, Any]:
            return np.zeros(count, dtype=dtype)

    def stub(seed: int, *key: str) -> Any:
        return Zeros() if "values" in key else generator(seed, *key)

    monkeypatch.setattr("sift_onnx.sparsity.draw.generator", stub)
    assert draw_sparse("w", (4, 5), 10, 0, 2.0, FLOAT, 0).values.all()
    assert draw_dense("w", (4, 5), 0, 2.0, FLOAT, 0).all()


# Vectors.


def test_a_constant_vector_stays_that_constant() -> None:
    original = np.full(4, 0.25, dtype=np.float16)
    for found in (draw_vector("slope", original, (9,), 0), neutral(original, (9,), 1.0)):
        assert found.dtype == np.float16
        assert found.tolist() == [0.25] * 9


def test_other_vectors_are_drawn_from_their_own_values() -> None:
    original = np.asarray([[1.5, -2.0], [0.0, 8.0]], dtype=np.float64)
    found = draw_vector("table", original, (40, 30), 3)
    assert (found.shape, found.dtype) == ((40, 30), np.float64)
    assert set(np.unique(found)) == {1.5, -2.0, 0.0, 8.0}
    assert np.array_equal(found, draw_vector("table", original, (40, 30), 3))
    assert not np.array_equal(found, draw_vector("table", original, (40, 30), 4))
    assert not np.array_equal(found, draw_vector("other", original, (40, 30), 3))


def test_trained_parameters_of_a_normalization_become_neutral() -> None:
    found = neutral(np.asarray([0.9, 1.2], dtype=np.float16), (5,), 1.0)
    assert found.dtype == np.float16
    assert found.tolist() == [1.0] * 5


@pytest.mark.parametrize(("out_axis", "in_axis"), [(0, 1), (1, 0)])
def test_a_draw_under_a_pattern_keeps_it_and_the_energy_of_each_feature(out_axis: int, in_axis: int) -> None:
    weight = draw_sparse(
        "w", (64, 64, 3, 3), 64 * 64 * 9 // 2, out_axis, 2.0, FLOAT, 0, pattern=Pattern.parse("2:4"), in_axis=in_axis
    )
    lines = np.moveaxis(weight.mask(), in_axis, -1).reshape(-1, 4)
    assert np.all(lines.sum(axis=1) == 2)
    assert np.mean(energies(weight, out_axis)) == pytest.approx(2, rel=0.05)


def test_an_unstructured_pattern_draws_what_no_pattern_draws() -> None:
    plain = draw_sparse("w", (8, 12), 24, 0, 2.0, FLOAT, 0)
    same = draw_sparse("w", (8, 12), 24, 0, 2.0, FLOAT, 0, pattern=Pattern.parse("unstructured"), in_axis=1)
    assert np.array_equal(plain.indices, same.indices)
