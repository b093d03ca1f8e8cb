"""First masks: exact, drawn by seed and name alone, and refused where they would leave nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training.sparse.loops import matrix

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse import SET, Group, RigL, Static, checkerboard, make_init_method
from sift_onnx.training.sparse.errors import WrongTypeError


def first_mask(algorithm: Any, model: torch.nn.Module | None = None) -> torch.Tensor:
    model = model or matrix()
    algorithm.apply(model)
    return model.weight_mask  # type: ignore[no-any-return]


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(["random", "topk", "checkerboard"]), st.integers(0, 99))
def test_counts_are_exact(method: str, percent: int) -> None:
    assert int(first_mask(Static(percent / 100, init_method=method)).sum()) == 400 * (100 - percent) // 100


def test_draws_depend_on_seed_and_name_and_nothing_else() -> None:
    class Two(torch.nn.Module):
        def __init__(self, names: str) -> None:
            super().__init__()
            for name in names:
                self.register_module(name, matrix())

    masks = []
    for names in ("ab", "ba"):
        torch.manual_seed(len(masks))
        model = Two(names)
        Static(0.5).apply(model)
        masks.append((model.get_buffer("a.weight_mask"), model.get_buffer("b.weight_mask")))

    assert torch.equal(masks[0][0], masks[1][0])
    assert torch.equal(masks[0][1], masks[1][1])
    assert not torch.equal(masks[0][0], masks[0][1])
    assert not torch.equal(first_mask(Static(0.5)), first_mask(Static(0.5, seed=1)))


def test_topk_keeps_the_largest_and_prunes_at_once() -> None:
    model = matrix()
    weight = model.weight.detach().clone()
    mask = first_mask(Static(0.75, init_method="topk"), model)

    assert weight[mask].abs().min() >= weight[~mask].abs().max()
    assert torch.equal(model.weight, weight * mask)


def test_from_zeros_keeps_what_is_there_whatever_the_sparsity() -> None:
    model = matrix()
    with torch.no_grad():
        model.weight[:, ::3] = 0

    assert torch.equal(first_mask(Static(0.5, init_method="from_zeros"), model), model.weight != 0)


def test_checkerboard_fills_rows_and_columns_alike() -> None:
    mask = checkerboard(torch.empty(12, 12), 0.75)

    assert mask.sum(0).tolist() == [3] * 12
    assert mask.sum(1).tolist() == [3] * 12


def test_a_function_makes_the_mask() -> None:
    seen = {}

    def upper(param: torch.Tensor, sparsity: float, score_shaper: Any = None, device: Any = None) -> torch.Tensor:
        seen["sparsity"] = sparsity
        return torch.ones(param.shape, device=device).triu()

    assert torch.equal(first_mask(Static(0.25, init_method=upper)), torch.ones(20, 20, dtype=torch.bool).triu())
    assert seen == {"sparsity": 0.25}


@pytest.mark.parametrize("method", ["magnitude", 3, lambda param: param])
def test_what_is_no_init_method_is_refused(method: Any) -> None:
    with pytest.raises(UsageError, match="init_method"):
        make_init_method(method)


def test_what_a_function_gives_is_checked() -> None:
    with pytest.raises(WrongTypeError, match="gave list as mask of 'weight'"):
        first_mask(Static(0.5, init_method=lambda p, sparsity, score_shaper=None, device=None: [1]))
    with pytest.raises(UsageError, match=r"shape \[2\], the parameter \[20, 20\]"):
        first_mask(Static(0.5, init_method=lambda p, sparsity, score_shaper=None, device=None: torch.ones(2)))


@pytest.mark.parametrize(
    "algorithm",
    [
        Static(0.999),
        RigL(sparsity=1.0, update={"freq": 5}),
        Static(0.5, init_method=lambda p, sparsity, score_shaper=None, device=None: torch.zeros(p.shape)),
    ],
)
def test_a_layer_that_would_be_empty_is_refused_by_name(algorithm: Any) -> None:
    with pytest.raises(UsageError, match="leaves none of the 400 weights of 'weight'; lower it"):
        first_mask(algorithm)


def test_a_layer_that_a_schedule_will_empty_is_refused_before_training() -> None:
    schedule = {"type": "linear", "init": 0, "slope": 0.01}
    with pytest.raises(UsageError, match=r"rises to 1\.19, which leaves none of its 400 weights"):
        first_mask(SET(sparsity=schedule, update={"freq": 10, "stop": 120}))


@pytest.mark.parametrize("shape", [(10, 30), (30, 10)])
def test_balanced_groups_are_filled_alike(shape: tuple[int, int]) -> None:
    outputs, inputs = shape
    model = torch.nn.Linear(inputs, outputs, bias=False)
    rows = first_mask(RigL(sparsity=0.7, balance_out_groups=5, update={"freq": 5}), model)
    model = torch.nn.Linear(inputs, outputs, bias=False)
    columns = first_mask(RigL(sparsity=0.7, balance_in_groups=5, update={"freq": 5}), model)

    assert rows.reshape(5, -1).sum(1).tolist() == [18] * 5
    assert columns.t().reshape(5, -1).sum(1).tolist() == [18] * 5


def test_groups_that_cannot_be_balanced_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot be had together"):
        RigL(sparsity=0.5, balance_in_groups=2, balance_out_groups=2)
    with pytest.raises(UsageError, match="3 balanced groups do not divide dimension 0 of 'weight'"):
        first_mask(RigL(sparsity=0.5, balance_out_groups=3))
    with pytest.raises(UsageError, match="for matrices, and 'weight' has shape"):
        first_mask(RigL(sparsity=0.5, balance_in_groups=2), torch.nn.Conv2d(4, 4, 3, bias=False))


def test_masks_that_are_given_keep_their_counts() -> None:
    mask = torch.zeros(20, 20, dtype=torch.bool)
    mask.view(-1)[:137] = True
    model = torch.nn.Sequential(matrix(), matrix())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    algorithm = SET(update={"freq": 1}).attach(model, optimizer, masks={"0.weight": mask.numpy()})
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 20)).sum().backward()
        optimizer.step()

    assert int(model[0].weight_mask.sum()) == 137
    assert not torch.equal(model[0].weight_mask, mask)
    assert list(algorithm.sparse_params) == ["0.weight"]


def test_a_group_keeps_given_masks_too() -> None:
    mask = torch.rand(20, 20) < 0.3
    model = matrix()
    group = Group({"*": RigL(update={"freq": 100})})
    group.start_from({"weight": mask})
    model.apply(group)

    assert torch.equal(model.weight_mask, mask)
