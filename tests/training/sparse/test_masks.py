"""Masks from scores: equal to cstorch's where it is defined, exact in number, with stable ties where it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sift_onnx.training.sparse import (
    InputGroupScoreShaper,
    OutputGroupScoreShaper,
    ScoreFlattener,
    make_mask_drop_minimum,
    make_mask_grow_maximum,
    make_mask_topk_sparsity,
)
from sift_onnx.training.sparse.schedules.share import Share
from sift_onnx.training.sparse.selection.counts import CSTORCH, EXACT
from sift_onnx.training.sparse.selection.largest import largest

shapers = pytest.mark.parametrize("shaper", [ScoreFlattener(), OutputGroupScoreShaper(4), InputGroupScoreShaper(4)])
finite = st.floats(-3, 3, width=16)
few_values = st.sampled_from([0.0, 1.0, 2.0, float("nan"), float("inf"), float("-inf")])
score_arrays = arrays.arrays(np.float32, st.integers(1, 40), elements=few_values | finite)


def cstorch_topk(scores: torch.Tensor, count: int, shaper: Any) -> torch.Tensor:
    """Its ``_make_mask_topk_k``: torch.topk along the last dimension."""
    shaped, unshape = shaper(scores)
    mask = torch.zeros_like(shaped, dtype=torch.bool)
    return unshape(mask.scatter(-1, torch.topk(shaped, count, dim=-1).indices, True))


def cstorch_update(
    weights: torch.Tensor, mask: torch.Tensor, growth: torch.Tensor, sparsity: float, drop: float, shaper: Any
) -> torch.Tensor:
    """Its SET and RigL: drop by magnitude, grow by scores, in single precision."""
    shaped = shaper(weights)[0]
    groups, size = (1, shaped.numel()) if shaped.dim() == 1 else shaped.shape
    keep = int((1 - torch.tensor(drop)) * (mask.sum().float() / groups))
    kept = cstorch_topk(weights.abs(), keep, shaper)
    target = int((1 - torch.tensor(sparsity)) * torch.tensor(float(size)))
    grown = cstorch_topk(torch.where(kept, float("-inf"), growth), max(target - keep, 0), shaper)
    return kept | grown


@shapers
@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.75, 0.9, 0.99])
@pytest.mark.parametrize("drop", [0.1, 0.3, 0.5])
def test_drop_and_grow_equal_cstorch_on_random_weights_and_gradients(shaper: Any, sparsity: float, drop: float) -> None:
    chance = torch.Generator().manual_seed(int(1000 * sparsity + 10 * drop))
    weights, gradient = torch.randn(2, 40, 60, generator=chance)
    mask = cstorch_topk(
        torch.rand(40, 60, generator=chance), CSTORCH.target(2400 // _groups(shaper), Share(sparsity)), shaper
    )
    weights = weights * mask

    kept, count = make_mask_drop_minimum(weights.abs(), mask, drop, shaper, rule=CSTORCH)
    new = make_mask_grow_maximum(gradient.abs(), kept, sparsity, count, shaper, rule=CSTORCH)

    assert torch.equal(new, cstorch_update(weights, mask, gradient.abs(), sparsity, drop, shaper))
    assert count == int(kept.sum())
    assert not (kept & ~mask).any()


@shapers
@pytest.mark.parametrize("sparsity", [0.0, 0.09, 0.5, 0.9])
def test_topk_equals_cstorch(shaper: Any, sparsity: float) -> None:
    scores = torch.randn(40, 60, generator=torch.Generator().manual_seed(1))
    count = CSTORCH.target(2400 // _groups(shaper), Share(sparsity))

    assert torch.equal(
        make_mask_topk_sparsity(scores, sparsity, shaper, rule=CSTORCH), cstorch_topk(scores, count, shaper)
    )


def _groups(shaper: Any) -> int:
    return getattr(shaper, "num_groups", 1)


def test_groups_of_outputs_and_inputs_compete_among_themselves() -> None:
    rows = make_mask_topk_sparsity(torch.tensor([[1.0, 2.0], [0.0, -1.0]]), 0.5, OutputGroupScoreShaper(2))
    columns = make_mask_topk_sparsity(torch.tensor([[1.0, 0.0], [2.0, -1.0]]), 0.5, InputGroupScoreShaper(2))

    assert rows.tolist() == [[False, True], [True, False]]
    assert columns.tolist() == [[False, True], [True, False]]


@shapers
def test_shapers_turn_back_what_they_laid_out(shaper: Any) -> None:
    tensor = torch.arange(8 * 12.0).reshape(8, 12)
    shaped, unshape = shaper(tensor)

    assert torch.equal(unshape(shaped), tensor)


@settings(deadline=None)
@given(score_arrays, st.integers(-2, 45), st.data())
def test_largest_takes_preferred_ties_first_and_then_lower_indices(
    scores: np.ndarray[Any, Any], count: int, data: st.DataObject
) -> None:
    preferred = np.array(data.draw(st.lists(st.booleans(), min_size=scores.size, max_size=scores.size)))
    worth = np.where(np.isnan(scores), -np.inf, scores)
    order = np.lexsort((np.arange(scores.size), ~preferred, -worth))
    expected = np.zeros(scores.size, dtype=bool)
    expected[order[: max(count, 0)]] = True

    found = largest(torch.from_numpy(scores), count, torch.from_numpy(preferred))

    assert found.tolist() == expected.tolist()


@settings(deadline=None)
@given(score_arrays, st.integers(0, 100), st.integers(0, 100), st.data())
def test_drops_are_nested_and_counts_exact(
    scores: np.ndarray[Any, Any], drop: int, sparsity: int, data: st.DataObject
) -> None:
    score = torch.from_numpy(scores)
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=scores.size, max_size=scores.size)))
    nnz = int(mask.sum())

    kept, count = make_mask_drop_minimum(score, mask, drop / 100)
    grown = make_mask_grow_maximum(score, kept, sparsity / 100)

    assert count == int(kept.sum()) == nnz - nnz * drop // 100
    assert not (kept & ~mask).any()
    assert not (kept & ~grown).any()
    assert int(grown.sum()) == max(count, scores.size * (100 - sparsity) // 100)


@settings(deadline=None)
@given(score_arrays, st.integers(0, 100), st.integers(0, 100))
def test_a_sparser_mask_lies_within_a_denser_one(scores: np.ndarray[Any, Any], first: int, second: int) -> None:
    low, high = sorted((first, second))
    dense = make_mask_topk_sparsity(torch.from_numpy(scores), low / 100)
    sparse = make_mask_topk_sparsity(torch.from_numpy(scores), high / 100)

    assert not (sparse & ~dense).any()


def test_active_zeros_win_against_pruned_zeros_wherever_they_lie() -> None:
    mask = torch.tensor([False, False, True, False, True])

    assert make_mask_topk_sparsity(torch.zeros(5), 0.4, mask=mask).tolist() == [True, False, True, False, True]
    kept, _ = make_mask_drop_minimum(torch.zeros(5), mask, 0.5)
    assert kept.tolist() == [False, False, True, False, False]


def test_nan_is_dropped_first_and_grown_last() -> None:
    scores = torch.tensor([float("nan"), 0.0, 1.0, 2.0])

    assert make_mask_drop_minimum(scores, torch.ones(4, dtype=torch.bool), 0.25)[0].tolist() == [
        False,
        True,
        True,
        True,
    ]
    assert make_mask_topk_sparsity(scores, 0.25).tolist() == [False, True, True, True]


def test_each_group_is_counted_for_itself_where_they_are_filled_unevenly() -> None:
    mask = torch.tensor([[True, True, True, True], [True, False, False, False]])
    scores = torch.tensor([[4.0, 3.0, 2.0, 1.0], [1.0, 9.0, 8.0, 7.0]])

    kept, _ = make_mask_drop_minimum(scores, mask, 0.5, OutputGroupScoreShaper(2))
    grown = make_mask_grow_maximum(scores, kept, 0.5, score_shaper=OutputGroupScoreShaper(2))

    assert kept.tolist() == [[True, True, False, False], [True, False, False, False]]
    assert grown.tolist() == [[True, True, False, False], [True, True, False, False]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_compared_too(dtype: torch.dtype) -> None:
    scores = torch.tensor([1.0, 3.0, 2.0, 0.0], dtype=dtype)

    assert make_mask_topk_sparsity(scores, 0.5).tolist() == [False, True, True, False]
    assert EXACT.target(4, Share(0.5)) == 2


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    st.sampled_from([None, 0.1, 0.9]),
    st.floats(0, 1),
    st.booleans(),
)
def test_large_tensors_are_selected_from_as_small_ones_are(
    seed: int, zeros: float, candidates: float | None, share: float, coarse: bool
) -> None:
    chance = np.random.default_rng(seed)
    scores = chance.standard_normal(40_000, dtype=np.float32)
    scores[chance.random(scores.size) < zeros] = 0
    if coarse:
        scores = scores.round(1)
    scores[chance.integers(0, scores.size, 5)] = [np.nan, np.inf, -np.inf, np.nan, 0]
    among = None if candidates is None else chance.random(scores.size) < candidates
    preferred = chance.random(scores.size) < 0.5
    available = np.flatnonzero(np.ones_like(preferred) if among is None else among)
    count = int(share * available.size)
    worth = np.where(np.isnan(scores), -np.inf, scores)[available]
    expected = np.zeros(scores.size, dtype=bool)
    expected[available[np.lexsort((available, ~preferred[available], -worth))[:count]]] = True

    found = largest(
        torch.from_numpy(scores), count, torch.from_numpy(preferred), None if among is None else torch.from_numpy(among)
    )

    assert np.array_equal(found.numpy(), expected)
