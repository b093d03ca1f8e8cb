"""Non-zeros and update steps, step by step, as cerebras.pytorch 2.10 has them: 400 weights, half of them, drop 0.3."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from training.sparse.loops import matrix, trace

from sift_onnx.training.sparse import GMP, SET, RigL

drop_and_grow = pytest.mark.parametrize("algorithm", [SET, RigL])


def runs(nnz: list[int]) -> list[tuple[int, int]]:
    """``(step, non-zeros)`` wherever the number changes."""
    return [(step, nnz[step]) for step in range(len(nnz)) if step == 0 or nnz[step] != nnz[step - 1]]


@drop_and_grow
def test_masks_change_at_each_multiple_of_freq_and_counts_stay(algorithm: Any) -> None:
    nnz, changes = trace(algorithm(sparsity=0.5, drop_fraction=0.3, update={"freq": 5}), 22)

    assert runs(nnz) == [(0, 200)]
    assert changes == [5, 10, 15, 20]


@drop_and_grow
def test_no_update_at_stop(algorithm: Any) -> None:
    nnz, changes = trace(algorithm(sparsity=0.5, update={"freq": 5, "stop": 10}), 20)

    assert runs(nnz) == [(0, 200)]
    assert changes == [5]


@drop_and_grow
def test_start_after_zero_trains_dense_and_then_decays_by_the_drop_fraction(algorithm: Any) -> None:
    with pytest.warns(UserWarning, match="trains dense until its first update, step 3"):
        nnz, changes = trace(algorithm(sparsity=0.5, update={"freq": 5, "start": 3}), 20)

    assert runs(nnz) == [(0, 400), (3, 280), (8, 200)]
    assert changes == [3, 8, 13, 18]


@drop_and_grow
def test_start_sparse_overrides_the_dense_start(algorithm: Any) -> None:
    nnz, changes = trace(algorithm(sparsity=0.5, update={"freq": 5, "start": 3}, start_sparse=True), 10)

    assert runs(nnz) == [(0, 200)]
    assert changes == [3, 8]


@drop_and_grow
def test_a_list_of_sparsities_is_cycled_through_by_updates(algorithm: Any) -> None:
    nnz, _ = trace(algorithm(sparsity=[0.3, 0.4, 0.5], update={"freq": 5}), 16)

    assert runs(nnz) == [(0, 280), (5, 240), (10, 200), (15, 280)]


def test_gmp_follows_a_linear_schedule() -> None:
    nnz, changes = trace(GMP(sparsity={"type": "linear", "init": 0, "slope": 0.02}, update={"freq": 5}), 12)

    assert runs(nnz) == [(0, 400), (5, 360), (10, 320)]
    assert changes == [5, 10]


def test_steps_that_are_listed_without_0_start_dense() -> None:
    with pytest.warns(UserWarning, match="start_sparse=True"):
        nnz, _ = trace(GMP(sparsity=[0.25, 0.5], update={"steps": [2, 7]}), 10)

    assert runs(nnz) == [(0, 400), (2, 300), (7, 200)]


def test_every_step_is_an_update_step_if_nothing_is_said() -> None:
    assert trace(SET(sparsity=0.5), 4)[1] == [1, 2, 3, 4]


def test_a_function_of_the_step_says_when() -> None:
    assert trace(SET(sparsity=0.5, update=lambda t: t % 4 == 0), 9)[1] == [4, 8]


def test_cbsparse_bounds_are_both_outside() -> None:
    schedule = {"freq": 5, "start": 5, "stop": 15}
    nnz, changes = trace(RigL(sparsity=0.5, init_method="topk", update=schedule, compat="cbsparse"), 20)

    assert changes == [10]
    assert runs(nnz) == [(0, 200)]


def test_cbsparse_draws_each_weight_by_itself_and_updates_mend_the_count() -> None:
    nnz, _ = trace(SET(sparsity=0.5, update={"freq": 5}, compat="cbsparse"), 6)

    assert nnz[0] != 200
    assert abs(nnz[0] - 200) < 50
    assert nnz[5] == max(200, nnz[0] - int(0.3 * nnz[0]))


def test_weights_step_on_update_steps_unless_it_is_skipped() -> None:
    moved: dict[str, list[bool]] = {}
    for weight_step in ("take", "skip"):
        model = matrix()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        RigL(sparsity=0.5, update={"freq": 2}, weight_step=weight_step).attach(model, optimizer)
        moved[weight_step] = []
        for _ in range(4):
            before, mask = model.weight.detach().clone(), model.weight_mask.clone()
            optimizer.zero_grad()
            model(torch.ones(2, 20)).square().sum().backward()
            optimizer.step()
            both = mask & model.weight_mask
            moved[weight_step].append(not torch.equal(before[both], model.weight.detach()[both]))

    assert moved == {"take": [True] * 4, "skip": [True, False, True, False]}
