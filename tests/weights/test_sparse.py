"""Masked weights: round trips, and how positions are drawn and written."""

from __future__ import annotations

import base64
import itertools
import math
import tracemalloc
import zlib

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_onnx.weights import sparse
from sift_onnx.weights.sparse import SparseWeight, decode_positions, encode_positions, generator, sample_positions

settings.register_profile("machine may be busy", deadline=None)
settings.load_profile("machine may be busy")

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
PALETTE = [0.0, -0.0, 1.0, -2.5, 1e-30, 3e38, math.inf, -math.inf, math.nan]

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def dense_tensors(draw):
    shape = draw(shapes)
    chosen = draw(st.lists(st.sampled_from(PALETTE), min_size=math.prod(shape), max_size=math.prod(shape)))
    with np.errstate(over="ignore"):
        return np.asarray(chosen).astype(draw(st.sampled_from(DTYPES))).reshape(shape)


@st.composite
def tensors_and_positions(draw):
    dense = draw(dense_tensors())
    return dense, np.flatnonzero([draw(st.booleans()) for _ in range(dense.size)])


def bits(array):
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@given(dense_tensors())
def test_mask_of_a_dense_tensor_is_its_non_zeros(dense):
    weight = SparseWeight.from_dense(dense)

    assert weight.shape == dense.shape
    assert weight.dtype == dense.dtype
    assert np.array_equal(weight.mask(), dense != 0)
    assert weight.nnz == np.count_nonzero(dense)
    assert weight.active_zeros().size == 0


@given(dense_tensors())
def test_dense_tensor_comes_back_bit_for_bit_but_for_the_sign_of_zeros(dense):
    expected = np.where(dense == 0, np.zeros((), dense.dtype), dense)
    assert np.array_equal(bits(SparseWeight.from_dense(dense).to_dense()), bits(expected))


@given(tensors_and_positions())
def test_active_zeros_stay_active_and_keep_their_sign(drawn):
    dense, positions = drawn
    weight = SparseWeight.from_dense(dense, positions)
    wanted = (dense != 0).reshape(-1)
    wanted[positions] = True

    assert np.array_equal(weight.mask().reshape(-1), wanted)
    assert np.array_equal(weight.active_zeros(), np.flatnonzero(wanted & (dense.reshape(-1) == 0)))
    assert np.array_equal(bits(weight.values), bits(dense.reshape(-1)[wanted]))
    again = SparseWeight.from_dense(weight.to_dense(), weight.active_zeros())
    assert np.array_equal(again.indices, weight.indices)
    assert np.array_equal(bits(again.values), bits(weight.values))


@given(tensors_and_positions())
def test_counts_along_an_axis_are_those_of_the_mask(drawn):
    weight = SparseWeight.from_dense(*drawn)
    mask = weight.mask()

    for axis in range(-mask.ndim, mask.ndim):
        others = tuple(i for i in range(mask.ndim) if i != axis % mask.ndim)
        counts = weight.counts_along(axis)
        assert counts.dtype == np.int64
        assert np.array_equal(counts, mask.sum(axis=others))


@pytest.mark.parametrize(("shape", "axis"), [((), 0), ((), -1), ((3,), 1), ((3, 2), 2), ((3, 2), -3)])
def test_axis_that_is_not_there_is_refused(shape, axis):
    with pytest.raises(ValueError, match="no axis"):
        SparseWeight.from_dense(np.ones(shape, np.float32)).counts_along(axis)


def test_sparsity_of_scalars_and_of_empty_tensors():
    assert SparseWeight.from_dense(np.float32(2).reshape(())).sparsity == 0
    assert SparseWeight.from_dense(np.float32(0).reshape(())).sparsity == 1
    assert SparseWeight.from_dense(np.zeros((3, 0), np.float32)).sparsity == 0


def test_tensor_in_another_memory_order_keeps_its_positions():
    dense = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert np.array_equal(SparseWeight.from_dense(dense).to_dense(), dense)
    assert np.array_equal(SparseWeight.from_dense(dense.T).to_dense(), dense.T)


@pytest.mark.parametrize(
    ("indices", "values"),
    [([1, 0], [1, 2]), ([1, 1], [1, 2]), ([-1, 0], [1, 2]), ([0, 4], [1, 2]), ([0], [1, 2]), ([[0]], [[1]])],
    ids=["descending", "repeated", "negative", "beyond the end", "fewer than values", "two axes"],
)
def test_indices_that_are_no_positions_are_refused(indices, values):
    with pytest.raises(ValueError, match="indices"):
        SparseWeight((2, 2), np.array(indices, np.int32), np.array(values, np.float32))


def test_weight_above_2_to_the_31_has_wide_indices():
    weight = SparseWeight((2**16, 2**16), np.array([5, 2**32 - 1]), np.ones(2, np.float32))
    counts = weight.counts_along(0)
    assert (counts[0], counts[-1], counts.sum()) == (1, 1, 2)
    assert sample_positions(2**33, 3, generator(0)).dtype == np.int64
    assert sample_positions(2**20, 3, generator(0)).dtype == np.int32


def test_random_streams_depend_on_seed_and_key_alone():
    first = generator(0, "conv.weight", 3).integers(2**62, size=4)

    assert np.array_equal(first, generator(0, "conv.weight", 3).integers(2**62, size=4))
    for key in [(1, "conv.weight", 3), (0, "conv.bias", 3), (0, "conv.weight", 4), (0, "conv.weight")]:
        assert not np.array_equal(first, generator(*key).integers(2**62, size=4))


def test_random_streams_are_those_of_earlier_versions():
    pinned = [12769510514389182247, 16539210143522114062]
    assert generator(0, "conv.weight").bit_generator.random_raw(2).tolist() == pinned


@pytest.fixture(params=["one block", "blocks", "strata"])
def blocks(request, monkeypatch):
    """Positions drawn in one block, in blocks of 7, and in strata of up to 19 in blocks of 7."""
    if request.param != "one block":
        monkeypatch.setattr(sparse, "_BLOCK", 7)
    if request.param == "strata":
        monkeypatch.setattr(sparse, "_POPULATION_LIMIT", 20)
    return request.param


def test_samples_are_exactly_as_many_distinct_ascending_positions(blocks):
    for size in [0, 1, 2, 6, 7, 8, 19, 20, 39, 100]:
        for count in range(size + 1):
            drawn = sample_positions(size, count, generator(size, "w", count))
            assert drawn.size == count
            assert np.all(np.diff(drawn) > 0)
            assert count == 0 or (drawn[0] >= 0 and drawn[-1] < size)


@pytest.mark.parametrize(("size", "count"), [(4, 5), (4, -1), (0, 1)])
def test_more_positions_than_there_are_cannot_be_drawn(size, count):
    with pytest.raises(ValueError, match="cannot choose"):
        sample_positions(size, count, generator(0))


def test_same_seed_and_name_give_the_same_mask(blocks):
    def draw():
        return sample_positions(50, 17, generator(0, "w"))

    assert np.array_equal(draw(), draw())
    assert not np.array_equal(draw(), sample_positions(50, 17, generator(0, "v")))


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("block", [3, 100])
def test_every_subset_is_equally_likely(block, count, monkeypatch):
    monkeypatch.setattr(sparse, "_BLOCK", block)
    draws, subsets = 15000, list(itertools.combinations(range(6), count))
    rng = generator(0, "uniform")
    seen = dict.fromkeys(subsets, 0)
    for _ in range(draws):
        seen[tuple(int(i) for i in sample_positions(6, count, rng))] += 1

    expected = draws / len(subsets)
    chi_square = sum((n - expected) ** 2 / expected for n in seen.values())
    # 14 degrees of freedom: beyond 60 once in ten million seeds, and the seed is fixed.
    assert chi_square < 60


def test_every_position_is_equally_likely_in_each_block_and_stratum(blocks):
    # Four strata, whose fixed shares are equal here.
    draws, size, count = 4000, 60, 16
    rng = generator(0, "uniform")
    seen = np.zeros(size)
    for _ in range(draws):
        seen[sample_positions(size, count, rng)] += 1

    expected = draws * count / size
    # Six standard deviations.
    assert np.all(np.abs(seen - expected) < 6 * math.sqrt(expected * (1 - count / size)))


def test_strata_get_their_share_to_within_one(monkeypatch):
    monkeypatch.setattr(sparse, "_POPULATION_LIMIT", 11)
    drawn = sample_positions(40, 13, generator(0))
    assert all(3 <= n <= 4 for n in np.bincount(drawn // 10, minlength=4))


position_sets = st.sets(st.integers(0, 3000)).map(sorted)


@given(position_sets)
def test_positions_come_back_from_text(positions):
    text = encode_positions(positions)
    assert text.isascii()
    assert text.isprintable()
    assert decode_positions(text, 3001).tolist() == positions


@given(st.sets(st.integers(0, 2**40), max_size=5).map(sorted))
def test_positions_far_apart_come_back_from_text(positions):
    assert decode_positions(encode_positions(positions), 2**40 + 1).tolist() == positions


@given(position_sets.filter(len))
def test_positions_outside_the_tensor_are_refused(positions):
    with pytest.raises(ValueError, match="damaged"):
        decode_positions(encode_positions(positions), positions[-1])


@pytest.mark.parametrize("positions", [[3, 2], [2, 2], [-1]])
def test_positions_out_of_order_cannot_be_written(positions):
    with pytest.raises(ValueError, match="ascend"):
        encode_positions(positions)


@given(st.text())
def test_any_other_text_is_refused(text):
    with pytest.raises(ValueError, match="positions"):
        decode_positions(text, 1000)


@given(position_sets, st.data())
def test_text_with_a_character_changed_is_refused_or_still_in_bounds(positions, data):
    text = encode_positions(positions)
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.characters()) + text[at + 1 :]
    try:
        found = decode_positions(changed, 3001)
    except ValueError:
        return
    assert np.all((found >= 0) & (found < 3001))
    assert np.all(np.diff(found) > 0)


@given(position_sets.filter(len), st.integers(1, 20))
def test_text_that_is_cut_off_is_refused(positions, lost):
    text = encode_positions(positions)
    with pytest.raises(ValueError, match="positions"):
        decode_positions(text[: max(0, len(text) - lost)], 3001)


def packed(gaps, width):
    return f"u{width}:" + base64.b64encode(zlib.compress(np.asarray(gaps, f"<u{width}").tobytes())).decode()


def test_sums_that_run_over_do_not_come_back_into_the_tensor():
    # 5, then beyond 2**63, then 3.
    with pytest.raises(ValueError, match="damaged"):
        decode_positions(packed([5, 2**63 - 1, 2**63 - 1], 8), 100)


def test_text_that_unpacks_to_gigabytes_takes_no_memory():
    zeros = zlib.compressobj()
    bomb = b"".join(zeros.compress(bytes(1 << 20)) for _ in range(64)) + zeros.flush()
    text = "u1:" + base64.b64encode(bomb).decode()
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="wrong length"):
            decode_positions(text, 1000)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
