"""Budgets in exact integers: uniform and Erdős-Rényi shares, whole units, and what patterns hold."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from sift_onnx.errors import BudgetError, UsageError
from sift_onnx.sparsity.budget import BudgetLayer, allocate, check_distribution, shares


@st.composite
def budgets(draw: st.DrawFn) -> tuple[list[BudgetLayer], int]:
    """Layers with positions of any size, and a target that all of them can share in."""
    layers = []
    for i in range(draw(st.integers(1, 6))):
        positions = draw(st.integers(1, 200))
        weights = draw(st.integers(1, 400))
        macs = draw(st.integers(1, 20_000))
        layers.append(BudgetLayer(f"layer{i}", macs, positions, weights))
    total = sum(layer.macs for layer in layers)
    lowest = max(Fraction(total * layer.positions, layer.macs) for layer in layers)
    highest = min(Fraction(total * layer.positions * layer.weights, layer.macs) for layer in layers)
    assume(math.ceil(lowest) <= int(highest))
    return layers, draw(st.integers(math.ceil(lowest), int(highest)))


@settings(deadline=None, max_examples=200)
@given(budgets())
@example(([BudgetLayer("a", 9, 5, 9), BudgetLayer("b", 9, 5, 9), BudgetLayer("c", 9, 3, 9)], 27))
def test_every_layer_gets_its_share_and_the_whole_never_costs_too_much(case: tuple[list[BudgetLayer], int]) -> None:
    layers, target = case
    nnz = allocate(layers, target)
    assert list(nnz) == [layer.name for layer in layers]
    total = sum(layer.macs for layer in layers)
    for layer in layers:
        share = Fraction(target * layer.macs, total * layer.positions)
        assert abs(nnz[layer.name] - share) < 1
        assert 1 <= nnz[layer.name] <= layer.weights
    spent = sum(nnz[layer.name] * layer.positions for layer in layers)
    short = [layer for layer in layers if nnz[layer.name] * layer.positions * total < target * layer.macs]
    assert target - max(layer.positions for layer in layers) < spent <= target
    # What is left over would not pay for one more non-zero in any layer that is below its share.
    assert all(target - spent < layer.positions for layer in short)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 10_000), st.integers(1, 5_000), st.integers(0, 20_000))
def test_a_layer_alone_gets_as_many_non_zeros_as_it_had_weights(weights: int, positions: int, more: int) -> None:
    layer = BudgetLayer("w", weights * positions, positions, weights + more)
    assert allocate([layer], layer.macs) == {"w": weights}


def test_what_rounding_leaves_goes_to_expensive_layers_first() -> None:
    layers = [BudgetLayer("cheap", 50, 3, 100), BudgetLayer("dear", 50, 7, 100)]
    # 20 MACs each are 6 and 2 non-zeros; of the 8 MACs left, 7 buy the dear layer one more.
    assert allocate(layers, 40) == {"cheap": 6, "dear": 3}
    # 7.5 MACs each are 2 and 1 non-zeros; 2 MACs are left, which pay for nothing.
    assert allocate(layers, 15) == {"cheap": 2, "dear": 1}
    assert allocate([BudgetLayer("b", 50, 7, 100), BudgetLayer("a", 50, 7, 100)], 21) == {"a": 2, "b": 1}


@pytest.mark.parametrize("target", [-5, 0, 9])
def test_a_budget_below_one_non_zero_a_layer_is_refused(target: int) -> None:
    with pytest.raises(BudgetError, match="no non-zero weight for 'w'"):
        allocate([BudgetLayer("w", 100, 10, 100)], target)


def test_a_budget_beyond_all_weights_is_refused() -> None:
    layer = BudgetLayer("w", 100, 10, 20)
    assert allocate([layer], 200) == {"w": 20}
    with pytest.raises(BudgetError, match=r"more non-zeros than 'w' has weights \(20\)"):
        allocate([layer], 201)


def test_a_layer_without_work_has_no_share() -> None:
    with pytest.raises(BudgetError, match="'idle'"):
        allocate([BudgetLayer("idle", 0, 10, 20)], 100)


def test_no_layers_need_no_budget() -> None:
    assert allocate([], 100) == {}


def test_shares_are_exact_beyond_the_precision_of_floats() -> None:
    layer = BudgetLayer("w", 100, 2**20 + 1, 2**41)
    assert allocate([layer], 2**40 * layer.positions) == {"w": 2**40}
    assert allocate([layer], 2**40 * layer.positions - 1) == {"w": 2**40 - 1}


# Units and capacities.


@settings(deadline=None, max_examples=200)
@given(budgets(), st.integers(2, 20))
def test_units_stay_whole_and_within_one_of_the_share(case: tuple[list[BudgetLayer], int], unit: int) -> None:
    layers, target = case
    layers = [replace(layer, unit=unit, weights=layer.weights * unit) for layer in layers]
    target *= unit
    exact, nnz = shares(layers, target), allocate(layers, target)
    assert sum(exact[layer.name] * layer.positions for layer in layers) == target
    for layer in layers:
        assert nnz[layer.name] % unit == 0
        assert abs(nnz[layer.name] - exact[layer.name]) < unit
    left = target - sum(nnz[layer.name] * layer.positions for layer in layers)
    assert left >= 0
    assert all(left < unit * layer.positions for layer in layers if nnz[layer.name] < exact[layer.name])


def test_a_share_of_less_than_a_block_is_refused() -> None:
    with pytest.raises(BudgetError, match="not one block of 16 weights for 'w'"):
        allocate([BudgetLayer("w", 100, 1, 100, unit=16)], 15)


def test_a_budget_beyond_what_a_mask_holds_is_refused() -> None:
    layer = BudgetLayer("w", 100, 10, 20, capacity=10)
    assert allocate([layer], 100) == {"w": 10}
    with pytest.raises(BudgetError, match=r"more non-zeros than 'w' has room for under its mask, of 20 weights \(10\)"):
        allocate([layer], 101)


# Erdős-Rényi.


def conv(name: str, outputs: int, inputs: int, kernel: int, positions: int) -> BudgetLayer:
    weights = outputs * inputs * kernel**2
    return BudgetLayer(name, weights * positions, positions, weights, dims=outputs + inputs + 2 * kernel)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[list[BudgetLayer], int]:
    """Convolutions of any shape under masks of any capacity, and a target that they can use."""
    layers = []
    for i in range(draw(st.integers(1, 6))):
        sizes = (draw(st.integers(1, 60)), draw(st.integers(1, 60)), draw(st.sampled_from([1, 3])))
        layer = conv(f"layer{i}", *sizes, draw(st.integers(1, 50)))
        layers.append(replace(layer, capacity=draw(st.integers(1, layer.weights))))
    return layers, draw(st.integers(1, sum(layer.limit * layer.positions for layer in layers)))


@settings(deadline=None, max_examples=200)
@given(convolutions())
def test_erdos_renyi_shares_use_the_budget_up_and_are_proportional_where_not_saturated(
    case: tuple[list[BudgetLayer], int],
) -> None:
    layers, target = case
    exact = shares(layers, target, "erk")
    assert sum(exact[layer.name] * layer.positions for layer in layers) == target
    free = [layer for layer in layers if exact[layer.name] < layer.limit]
    scales = {exact[layer.name] / layer.dims for layer in free}
    assert len(scales) <= 1
    for layer in layers:
        assert 0 < exact[layer.name] <= layer.limit
        # A saturated layer would get more than it holds.
        assert all(layer in free or scale * layer.dims >= layer.limit for scale in scales)


@settings(deadline=None, max_examples=200)
@given(convolutions())
def test_whole_non_zeros_are_within_one_of_the_erdos_renyi_share(case: tuple[list[BudgetLayer], int]) -> None:
    layers, target = case
    exact = shares(layers, target, "erk")
    assume(all(share >= 1 for share in exact.values()))
    nnz = allocate(layers, target, "erk")
    assert all(abs(nnz[layer.name] - exact[layer.name]) < 1 for layer in layers)
    left = target - sum(nnz[layer.name] * layer.positions for layer in layers)
    assert 0 <= left < max(layer.positions for layer in layers)


def test_densities_are_those_of_rigl() -> None:
    """Evci et al. 2020, section 3: ``(n_in + n_out + w + h) / (n_in * n_out * w * h)``, scaled."""
    layers = [conv("a", 64, 64, 3, 5), conv("b", 256, 128, 3, 5)]
    exact = shares(layers, 100_000, "erk")
    density = {layer.name: exact[layer.name] / layer.weights for layer in layers}
    law = {"a": Fraction(64 + 64 + 3 + 3, 64 * 64 * 9), "b": Fraction(256 + 128 + 3 + 3, 256 * 128 * 9)}
    assert density["a"] / density["b"] == law["a"] / law["b"]


def test_a_small_layer_becomes_dense_and_the_others_take_the_rest() -> None:
    small, large = conv("small", 4, 4, 1, 10), conv("large", 100, 100, 3, 10)
    nnz = allocate([small, large], 10_000, "erk")
    assert nnz == {"small": 16, "large": 984}


def test_more_than_all_layers_hold_is_refused() -> None:
    layer = conv("w", 4, 4, 1, 10)
    assert allocate([layer], 160, "erk") == {"w": 16}
    with pytest.raises(BudgetError, match="11 more than all sparse layers can use"):
        allocate([layer], 171, "erk")


def test_a_distribution_that_is_none_is_refused() -> None:
    assert check_distribution("erk") == "erk"
    with pytest.raises(UsageError, match="'er' is unknown; choose one of uniform, erk"):
        check_distribution("er")
