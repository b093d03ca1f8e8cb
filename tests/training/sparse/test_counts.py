"""Exact counts, and those of other implementations where they are asked for."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.errors import WrongTypeError
from sift_onnx.training.sparse.schedules.share import Share
from sift_onnx.training.sparse.selection.counts import CBSPARSE, CSTORCH, EXACT, count_rule


def test_nine_percent_of_500_leaves_455_where_single_precision_leaves_454() -> None:
    assert EXACT.target(500, Share(0.09)) == 455
    assert CSTORCH.target(500, Share(0.09)) == 454


def test_counts_stay_exact_above_what_single_precision_can_hold() -> None:
    numel = 2**25 + 3
    assert EXACT.target(numel, Share(0.5)) == numel // 2
    assert EXACT.target(numel, Share(0)) == numel
    assert CSTORCH.target(numel, Share(0)) != numel


def test_cstorch_and_cbsparse_round_drops_in_opposite_directions() -> None:
    different = sum(CSTORCH.keep(n, Share(0.3)) != CBSPARSE.keep(n, Share(0.3)) for n in range(1, 2000))
    assert different == 1800


def test_cbsparse_counts_first_masks_from_the_other_side() -> None:
    assert CBSPARSE.initial(7, Share(0.9)) == 1
    assert CBSPARSE.target(7, Share(0.9)) == 0


@given(st.integers(0, 10**9), st.integers(0, 1000))
def test_target_is_the_floor_of_the_decimal_product(numel: int, thousandths: int) -> None:
    assert EXACT.target(numel, Share(thousandths / 1000)) == numel * (1000 - thousandths) // 1000


@given(st.integers(0, 10**9), st.integers(0, 1000))
def test_no_more_is_dropped_than_the_fraction_says(nnz: int, thousandths: int) -> None:
    dropped = nnz - EXACT.keep(nnz, Share(thousandths / 1000))
    assert dropped == nnz * thousandths // 1000


@given(st.integers(1, 10**9), st.data())
def test_the_sparsity_of_a_mask_gives_its_count_back(size: int, data: st.DataObject) -> None:
    nnz = data.draw(st.integers(0, size))
    assert EXACT.target(size, Share(1 - Fraction(nnz, size))) == nnz


@pytest.mark.parametrize(
    "value", [0.9, "0.9", Fraction(9, 10), torch.tensor(0.9), torch.tensor(0.9, dtype=torch.float64)]
)
def test_every_spelling_of_nine_tenths_is_nine_tenths(value: object) -> None:
    assert Share(value).exact == Fraction(9, 10)  # type: ignore[arg-type]


def test_a_share_is_a_float_that_keeps_its_value() -> None:
    share = Share(Fraction(1, 3))
    assert isinstance(share, float)
    assert Share(share) is share
    assert Share(1.5).clamped() == 1
    assert Share(-0.5).clamped() == 0
    assert share.clamped() is share
    assert share.item() == 1 / 3


@pytest.mark.parametrize(("value", "error"), [(True, WrongTypeError), (None, WrongTypeError), ("x", UsageError)])
def test_what_is_no_number_is_refused(value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="is no"):
        Share(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), torch.tensor(float("nan"))])
def test_what_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="not a finite number"):
        Share(value)


def test_unknown_compat_is_refused() -> None:
    with pytest.raises(UsageError, match="'cstorch' or 'cbsparse'"):
        count_rule("rigl")
