"""What every pattern promises: its spelling, and exact counts of masks that it allows."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sift_onnx.errors import UsageError
from sift_onnx.sparsity.patterns.pattern import UNSTRUCTURED, Pattern
from sift_onnx.sparsity.patterns.weight_matrix import WeightMatrix
from sift_onnx.weights.sparse import generator

settings.register_profile("machine may be busy", deadline=None)
settings.load_profile("machine may be busy")

SPELLINGS = [
    "unstructured", "1:2", "2:4", "3:5", "1:2-transposable", "2:4-transposable", "1:3-transposable", "block:2x3",
    "block:1x4", "block:4x1",
]  # fmt: skip

patterns = st.sampled_from([Pattern.parse(text) for text in SPELLINGS])


@st.composite
def matrices(draw: st.DrawFn, pattern: Pattern = UNSTRUCTURED) -> WeightMatrix:
    """Any weight that the pattern fits, its axes in any order."""
    rank = draw(st.integers(2, 4))
    out_axis, in_axis = draw(st.sampled_from(list(itertools.permutations(range(rank), 2))))
    shape = [draw(st.integers(1, 3)) for _ in range(rank)]
    steps = (pattern.first, pattern.second) if pattern.kind == "block" else (1, 1)
    for axis, step in zip((out_axis, in_axis), steps, strict=True):
        shape[axis] = step * draw(st.integers(1, 9 // step + 1))
    return WeightMatrix(tuple(shape), out_axis, in_axis)


@st.composite
def cases(draw: st.DrawFn, *, nested: bool = False) -> tuple[Pattern, WeightMatrix, int, Any]:
    """A pattern, a weight, a number of non-zeros that is possible, and positions to choose from."""
    pattern = draw(patterns)
    matrix = draw(matrices(pattern))
    allowed = None
    if nested:
        density = draw(st.sampled_from([0.3, 0.6, 0.9]))
        allowed = np.flatnonzero(np.random.default_rng(draw(st.integers(0, 99))).random(matrix.size) < density)
    most = pattern.capacity(matrix, allowed)
    return pattern, matrix, pattern.unit * draw(st.integers(0, most // pattern.unit)), allowed


def as_matrices(matrix: WeightMatrix, positions: Any) -> Any:
    """The mask as ``[slices, outputs, inputs]``."""
    mask = np.zeros(matrix.size, dtype=bool)
    mask[positions] = True
    axes = (matrix.out_axis, matrix.in_axis)
    return np.moveaxis(mask.reshape(matrix.shape), axes, (-2, -1)).reshape(-1, matrix.outputs, matrix.inputs)


def groups_along(mask: Any, m: int) -> Any:
    """Number of non-zeros in each group of ``m`` along the last axis."""
    return np.add.reduceat(mask.astype(int), range(0, mask.shape[-1], m), axis=-1)


def assert_allowed(pattern: Pattern, matrix: WeightMatrix, positions: Any, count: int) -> None:
    """The positions are a mask of that many non-zeros under the pattern, in the form that SparseWeight takes."""
    assert positions.dtype == np.int32
    assert positions.size == count
    assert np.all(np.diff(positions) > 0)
    mask = as_matrices(matrix, positions)
    assert np.count_nonzero(mask) == count
    if pattern.kind.startswith("n:m"):
        assert groups_along(mask, pattern.second).max() <= pattern.first
    if pattern.kind == "n:m-transposable":
        assert groups_along(mask.swapaxes(-1, -2), pattern.second).max() <= pattern.first
    if pattern.kind == "block":
        r, c = pattern.first, pattern.second
        blocks = mask.reshape(len(mask), matrix.outputs // r, r, matrix.inputs // c, c).sum(axis=(2, 4))
        assert set(np.unique(blocks)) <= {0, r * c}


# Spelling.


@pytest.mark.parametrize("text", [*SPELLINGS, "4:8", "1:1024", "64:128", "31:64-transposable", "block:32x32"])
def test_a_pattern_is_spelled_as_it_is_parsed(text: str) -> None:
    pattern = Pattern.parse(text)
    assert str(pattern) == text
    assert Pattern.parse(str(pattern)) == pattern
    assert Pattern.parse(pattern) is pattern


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2-4", "unknown; use unstructured, N:M"),
        ("2:4-transposed", "unknown"),
        ("block:4", "unknown"),
        ("", "unknown"),
        (" 2:4", "unknown"),
        ("4:4", "leaves 4 of 4"),
        ("0:4", "leaves 0 of 4"),
        ("8:4", "leaves 8 of 4"),
        ("2:2000", "groups of 2000; use 1024 or less"),
        ("2:128-transposable", "groups of 128; use 64 or less"),
        ("block:0x4", "empty blocks"),
    ],
)
def test_what_is_no_pattern_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Pattern.parse(text)


@pytest.mark.parametrize(
    ("text", "density", "width_multiple", "unit"),
    [
        ("unstructured", Fraction(1), 1, 1),
        ("2:4", Fraction(1, 2), 4, 1),
        ("1:8-transposable", Fraction(1, 8), 8, 1),
        ("block:4x6", Fraction(1), 12, 24),
    ],
)
def test_what_a_pattern_asks_of_widths_and_budgets(
    text: str, density: Fraction, width_multiple: int, unit: int
) -> None:
    pattern = Pattern.parse(text)
    assert (pattern.density, pattern.width_multiple, pattern.unit) == (density, width_multiple, unit)


# Masks.


@settings(max_examples=300)
@given(cases(), st.integers(0, 5))
def test_a_draw_has_exactly_the_count_and_keeps_the_pattern(
    case: tuple[Pattern, WeightMatrix, int, Any], seed: int
) -> None:
    pattern, matrix, count, _ = case
    positions = pattern.draw(matrix, count, generator(seed, "w", "mask"))
    assert_allowed(pattern, matrix, positions, count)
    assert np.array_equal(positions, pattern.draw(matrix, count, generator(seed, "w", "mask")))


@settings(max_examples=300)
@given(cases(), st.integers(0, 99), st.sampled_from([1, 3, 1000]))
def test_a_choice_has_exactly_the_count_and_keeps_the_pattern(
    case: tuple[Pattern, WeightMatrix, int, Any], seed: int, levels: int
) -> None:
    pattern, matrix, count, _ = case
    scores = np.random.default_rng(seed).integers(0, levels, matrix.shape).astype(np.float32)
    assert_allowed(pattern, matrix, pattern.choose(matrix, count, scores), count)


@settings(max_examples=300)
@given(cases(nested=True), st.integers(0, 99))
def test_a_choice_among_allowed_weights_stays_among_them(
    case: tuple[Pattern, WeightMatrix, int, Any], seed: int
) -> None:
    pattern, matrix, count, allowed = case
    scores = np.random.default_rng(seed).random(matrix.shape)
    positions = pattern.choose(matrix, count, scores, allowed)
    assert_allowed(pattern, matrix, positions, count)
    assert np.isin(positions, allowed).all()


@given(patterns.flatmap(lambda p: st.tuples(st.just(p), matrices(p))))
def test_the_capacity_is_the_share_where_the_groups_divide_the_sizes(case: tuple[Pattern, WeightMatrix]) -> None:
    pattern, matrix = case
    most = pattern.capacity(matrix)
    assert most == pattern.capacity(matrix, np.arange(matrix.size))
    if not matrix.inputs % pattern.width_multiple and not matrix.outputs % pattern.width_multiple:
        assert most == matrix.size * pattern.density


@given(cases())
def test_more_than_the_capacity_is_refused(case: tuple[Pattern, WeightMatrix, int, Any]) -> None:
    pattern, matrix, _, _ = case
    for count in (pattern.capacity(matrix) + pattern.unit, -pattern.unit):
        with pytest.raises(ValueError, match="cannot choose"):
            pattern.draw(matrix, count, generator(0, "w"))
        with pytest.raises(ValueError, match="cannot choose"):
            pattern.choose(matrix, count, np.ones(matrix.shape))


def test_scores_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="scores of shape"):
        UNSTRUCTURED.choose(WeightMatrix.of((2, 3), 0), 1, np.ones(6))


@given(cases(), st.permutations(range(4)))
def test_a_mask_does_not_depend_on_how_the_weight_is_stored(
    case: tuple[Pattern, WeightMatrix, int, Any], order: list[int]
) -> None:
    """But for ties."""
    pattern, matrix, count, _ = case
    # The exchanges of a transposable mask start from the row that comes first.
    assume(pattern.kind != "n:m-transposable")
    scores = np.random.default_rng(0).random(matrix.shape)
    axes = [axis for axis in order if axis < len(matrix.shape)]
    stored = WeightMatrix(tuple(matrix.shape[a] for a in axes), axes.index(matrix.out_axis), axes.index(matrix.in_axis))
    here = np.zeros(matrix.size, dtype=bool)
    here[pattern.choose(matrix, count, scores)] = True
    there = np.zeros(matrix.size, dtype=bool)
    there[pattern.choose(stored, count, scores.transpose(axes))] = True
    assert np.array_equal(here.reshape(matrix.shape).transpose(axes).reshape(-1), there)


@given(st.sampled_from([Pattern.parse(t) for t in SPELLINGS if "transposable" not in t]), st.data())
def test_a_choice_has_the_best_sum_that_is_possible(pattern: Pattern, data: st.DataObject) -> None:
    """Against every mask of a small weight."""
    width = pattern.second if pattern.kind == "block" else 5
    matrix = WeightMatrix.of((pattern.first if pattern.kind == "block" else 2, 2 * width if width < 5 else width), 0)
    scores = np.asarray(data.draw(st.lists(st.integers(0, 9), min_size=matrix.size, max_size=matrix.size)))
    count = pattern.unit * data.draw(st.integers(0, min(4, pattern.capacity(matrix)) // pattern.unit))
    best = max(
        sum(scores[list(subset)])
        for subset in itertools.combinations(range(matrix.size), count)
        if is_allowed(pattern, matrix, subset)
    )
    assert scores[pattern.choose(matrix, count, scores.reshape(matrix.shape))].sum() == best


def is_allowed(pattern: Pattern, matrix: WeightMatrix, subset: tuple[int, ...]) -> bool:
    try:
        assert_allowed(pattern, matrix, np.asarray(subset, dtype=np.int32), len(subset))
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("text", ["unstructured", "2:4", "2:4-transposable", "block:1x2"])
def test_of_equal_scores_the_first_ones_are_chosen(text: str) -> None:
    pattern, matrix = Pattern.parse(text), WeightMatrix.of((4, 4), 0)
    assert pattern.choose(matrix, 4, np.ones((4, 4))).tolist() == {
        "unstructured": [0, 1, 2, 3], "2:4": [0, 1, 4, 5], "2:4-transposable": [0, 1, 4, 5], "block:1x2": [0, 1, 2, 3]
    }[text]  # fmt: skip


def test_scores_that_are_no_numbers_come_last_and_infinite_ones_first() -> None:
    scores = np.asarray([[np.nan, -np.inf, np.inf, 2.0, 1.0]])
    matrix = WeightMatrix.of(scores.shape, 0)
    assert UNSTRUCTURED.choose(matrix, 3, scores).tolist() == [2, 3, 4]
    assert UNSTRUCTURED.choose(matrix, 5, scores).tolist() == [0, 1, 2, 3, 4]
    assert UNSTRUCTURED.choose(matrix, 1, scores, np.asarray([0, 4])).tolist() == [4]
    assert UNSTRUCTURED.choose(matrix, 2, scores, np.asarray([0, 4])).tolist() == [0, 4]


def test_scores_of_half_precision_and_whole_numbers_are_compared_exactly() -> None:
    matrix = WeightMatrix.of((1, 3), 0)
    assert UNSTRUCTURED.choose(matrix, 1, np.asarray([[1, 2, 3]], dtype=np.float16)).tolist() == [2]
    assert UNSTRUCTURED.choose(matrix, 1, np.asarray([[2**24, 2**24 + 1, 2**24]])).tolist() == [1]


# N:M.


@settings(max_examples=200)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 40), st.data())
def test_groups_are_filled_evenly(n: int, more: int, inputs: int, data: st.DataObject) -> None:
    """Two groups differ by one at most, unless one is full."""
    m = n + more
    matrix = WeightMatrix.of((3, inputs), 0)
    pattern = Pattern("n:m", n, m)
    count = data.draw(st.integers(0, pattern.capacity(matrix)))
    filled = groups_along(as_matrices(matrix, pattern.draw(matrix, count, generator(0, "w"))), m)
    limits = np.minimum(n, np.minimum(m, inputs - np.arange(0, inputs, m)))
    assert np.all((filled >= filled.max() - 1) | (filled == limits))


def test_at_the_sparsity_of_the_pattern_every_group_is_full() -> None:
    matrix = WeightMatrix.of((5, 16, 3, 3), 0)
    mask = as_matrices(matrix, Pattern.parse("2:4").draw(matrix, matrix.size // 2, generator(0, "w")))
    assert np.all(groups_along(mask, 4) == 2)


def test_every_subset_of_a_group_is_equally_likely() -> None:
    matrix = WeightMatrix.of((6000, 4), 0)
    mask = as_matrices(matrix, Pattern.parse("2:4").draw(matrix, 12000, generator(0, "w")))[0]
    counts = np.bincount(mask @ (1 << np.arange(4)), minlength=16)
    drawn = counts[counts > 0]
    assert drawn.size == 6
    # Six standard deviations of a binomial of 6000 draws at one sixth.
    assert np.abs(drawn - 1000).max() < 6 * math.sqrt(6000 / 6 * 5 / 6)


def test_groups_run_along_input_channels_at_one_kernel_position() -> None:
    """``[O, C, kh, kw]``: neighbours in a group are ``kh * kw`` apart."""
    scores = np.zeros((1, 4, 2, 1))
    scores[0, :, 0, 0] = [9, 8, 7, 6]
    scores[0, :, 1, 0] = [1, 2, 3, 4]
    chosen = Pattern.parse("2:4").choose(WeightMatrix.of(scores.shape, 0), 4, scores)
    assert sorted(scores.reshape(-1)[chosen]) == [3, 4, 8, 9]


def test_large_weights_are_drawn_and_chosen_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = WeightMatrix.of((37, 22, 2, 2), 0)
    scores = np.random.default_rng(0).random(matrix.shape)
    for pattern in (Pattern.parse("2:4"), Pattern.parse("2:4-transposable")):
        count = pattern.capacity(matrix) - 5
        whole = pattern.choose(matrix, count, scores)
        for module in ("groups", "transposable"):
            monkeypatch.setattr(f"sift_onnx.sparsity.patterns.{module}._CHUNK", 50)
        assert np.array_equal(whole, pattern.choose(matrix, count, scores))
        assert_allowed(pattern, matrix, pattern.draw(matrix, count, generator(0, "w")), count)
        monkeypatch.undo()


# Transposable.


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.integers(0, 999))
def test_a_full_transposable_mask_has_n_in_every_row_and_column_of_a_block(
    n: int, more: int, down: int, right: int, seed: int
) -> None:
    m = n + more
    pattern, matrix = Pattern("n:m-transposable", n, m), WeightMatrix.of((down * m, right * m), 0)
    scores = np.random.default_rng(seed).random(matrix.shape)
    mask = as_matrices(matrix, pattern.choose(matrix, matrix.size * n // m, scores))
    assert np.all(groups_along(mask, m) == n)
    assert np.all(groups_along(mask.swapaxes(-1, -2), m) == n)


def test_a_greedy_choice_that_leaves_holes_is_completed() -> None:
    """After 9, 8 and 7 the last row has only the forbidden column left."""
    scores = np.asarray([[9.0, 1, 1], [1, 8, 1], [1, 1, 0]])
    matrix, pattern = WeightMatrix.of((3, 3), 0), Pattern.parse("1:3-transposable")
    assert pattern.choose(matrix, 3, scores).tolist() == [0, 4, 8]
    allowed = np.asarray([0, 1, 2, 3, 4, 5, 6, 7])
    assert pattern.capacity(matrix, allowed) == 3
    assert pattern.choose(matrix, 3, scores, allowed).size == 3


def test_a_long_exchange_finds_the_only_full_mask() -> None:
    """Allowed: the diagonal and the one above, and the lower left corner; the scores prefer what blocks it."""
    size = 6
    allowed = np.sort(np.asarray([i * size + i + 1 for i in range(size - 1)] + [i * size + i for i in range(1, size)]))
    allowed = np.sort(np.append(allowed, (size - 1) * size))
    scores = np.zeros((size, size))
    scores[np.arange(size), np.arange(size)] = 1
    matrix, pattern = WeightMatrix.of((size, size), 0), Pattern.parse("1:6-transposable")
    chosen = pattern.choose(matrix, pattern.capacity(matrix, allowed), scores, allowed)
    assert chosen.size == size
    assert np.isin(chosen, allowed).all()


@settings(max_examples=60)
@given(st.integers(1, 2), st.integers(0, 9999), st.sampled_from([0.2, 0.5, 0.8]))
def test_the_capacity_among_allowed_weights_is_the_largest_there_is(n: int, seed: int, density: float) -> None:
    """Against every mask of one block of three by three."""
    pattern, matrix = Pattern("n:m-transposable", n, 3), WeightMatrix.of((3, 3), 0)
    allowed = np.flatnonzero(np.random.default_rng(seed).random(9) < density)
    best = max(
        size
        for size in range(allowed.size + 1)
        for subset in itertools.combinations(allowed.tolist(), size)
        if is_allowed(pattern, matrix, subset)
    )
    assert pattern.capacity(matrix, allowed) == best


# Blocks.


def test_blocks_that_do_not_divide_the_sizes_do_not_fit() -> None:
    pattern, matrix = Pattern.parse("block:4x4"), WeightMatrix.of((10, 8), 0)
    assert pattern.misfit(matrix) == "4x4 blocks do not divide its 10x8 features"
    assert pattern.capacity(matrix) == 0
    with pytest.raises(ValueError, match="do not divide"):
        pattern.draw(matrix, 16, generator(0, "w"))
    assert pattern.misfit(WeightMatrix.of((12, 8), 0)) is None


def test_a_part_of_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="not a whole number of 2x2 blocks"):
        Pattern.parse("block:2x2").draw(WeightMatrix.of((4, 4), 0), 6, generator(0, "w"))


# Matrices.


def test_axes_that_a_weight_does_not_have_are_refused() -> None:
    for axes in ((0, 0), (0, 2), (-1, 0)):
        with pytest.raises(ValueError, match="not two axes"):
            WeightMatrix((4, 4), *axes)


def test_the_input_axis_is_the_first_other_one() -> None:
    assert WeightMatrix.of((4, 3, 2, 2), 0).in_axis == 1
    assert WeightMatrix.of((4, 3, 2, 2), 1).in_axis == 0
    assert WeightMatrix.of([5, 4, 3], 2, 1).in_axis == 1
