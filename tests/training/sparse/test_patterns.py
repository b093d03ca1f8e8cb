"""Updates that stay within N:M and block patterns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training.sparse.loops import Net, train

from sift_onnx.errors import UsageError
from sift_onnx.sparsity.patterns.pattern import Pattern
from sift_onnx.sparsity.patterns.weight_matrix import WeightMatrix
from sift_onnx.training.sparse import GMP, IMP, SET, DynamicSparsityAlgorithm, Group, RigL, Share, Static
from sift_onnx.training.sparse.selection.patterned import conforms, draw_mask, drop_mask, grow_mask, room

patterns = st.sampled_from(["1:2", "2:4", "2:8", "2:4-transposable", "block:2x4", "block:4x1"])


def groups_of_four(mask: torch.Tensor) -> torch.Tensor:
    """Non-zeros of each group of four input features of an output feature and kernel position."""
    return mask.movedim(1, -1).reshape(-1, 4).sum(-1)


@pytest.mark.parametrize(
    "algorithm",
    [
        lambda: RigL(sparsity=0.5, update={"freq": 1}, pattern="2:4"),
        lambda: RigL(sparsity=0.7, update={"freq": 1}, pattern="2:4", distribution="erk"),
        lambda: SET(sparsity=0.6, update={"freq": 1}, pattern="2:4"),
        lambda: GMP(sparsity=[0.5, 0.6, 0.7, 0.8], update={"freq": 1}, pattern="2:4"),
        lambda: IMP(sparsity=0.6, rounds=2, update={"freq": 2}, pattern="2:4"),
        lambda: Static(sparsity=0.5, pattern="2:4", init_method="topk"),
    ],
)
def test_no_group_of_four_ever_holds_more_than_two(algorithm: Any) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    made = algorithm()
    Group({("body.weight", "fc*.weight"): made}).attach(model, optimizer)
    start = {name: sparse.mask.clone() for name, sparse in made.sparse_params.items()}

    def check(step: int) -> None:
        for sparse in made.sparse_params.values():
            assert not sparse.param[~sparse.mask].any()
            if made.starts_sparse or step >= 1:
                assert int(groups_of_four(sparse.mask).max()) <= 2

    train(model, optimizer, range(4), check)
    changed = [not torch.equal(start[name], sparse.mask) for name, sparse in made.sparse_params.items()]
    assert all(changed) != isinstance(made, Static)


@settings(deadline=None, max_examples=40)
@given(patterns, st.integers(1, 6), st.integers(0, 2**16), st.floats(0, 1), st.floats(0, 1))
def test_drop_and_grow_keep_counts_and_pattern(name: str, groups: int, seed: int, keep: float, fill: float) -> None:
    pattern = Pattern.parse(name)
    matrix = WeightMatrix((8, 8 * groups, 3), 0, 1)
    count = room(pattern, matrix, round(fill * matrix.size))
    mask = draw_mask(pattern, matrix, count, np.random.default_rng(seed))
    scores = torch.rand(matrix.shape, generator=torch.Generator().manual_seed(seed))

    kept = drop_mask(pattern, matrix, int(keep * count), scores, mask)
    grown = grow_mask(pattern, matrix, count, scores.flip(0), kept)

    assert not (kept & ~mask).any()
    assert int(kept.sum()) == int(keep * count) // pattern.unit * pattern.unit
    assert int(grown.sum()) == count
    assert conforms(pattern, matrix, grown)
    if pattern.kind != "n:m-transposable":
        assert not (kept & ~grown).any()


def test_a_sparsity_that_the_pattern_has_no_room_for_fills_the_pattern() -> None:
    model = torch.nn.Linear(8, 8, bias=False)
    Static(sparsity=0.25, pattern="2:4").apply(model)

    assert groups_of_four(model.weight_mask).tolist() == [2] * 16


def test_other_layouts_name_their_feature_axes() -> None:
    model = torch.nn.Linear(8, 4, bias=False)
    model.weight.feature_axes = (1, 0)  # type: ignore[attr-defined]
    Static(sparsity=0.5, pattern="2:4").apply(model)

    assert model.weight_mask.t().reshape(-1, 4).sum(-1).tolist() == [2] * 8


def test_what_a_pattern_cannot_mask_is_refused() -> None:
    with pytest.raises(UsageError, match="'bias' is a vector, and pattern 2:4 needs matrices"):
        Static(sparsity=0.5, pattern="2:4").apply(torch.nn.Linear(8, 8))
    with pytest.raises(UsageError, match="4x4 blocks do not divide its 6x8 features"):
        Static(sparsity=0.5, pattern="block:4x4").apply(torch.nn.Linear(8, 6, bias=False))
    with pytest.raises(UsageError, match="balanced groups and a pattern"):
        RigL(sparsity=0.5, pattern="2:4", balance_out_groups=2).apply(torch.nn.Linear(8, 8, bias=False))
    with pytest.raises(UsageError, match="the first mask of 'weight' is no 2:4 mask"):
        Static(sparsity=0.1, pattern="2:4", init_method="checkerboard").apply(torch.nn.Linear(8, 8, bias=False))
    with pytest.raises(UsageError, match="leaves none of the 64 weights"):
        Static(sparsity=0.9, pattern="block:8x8").apply(torch.nn.Linear(8, 8, bias=False))


def test_an_algorithm_of_a_user_keeps_to_its_pattern_by_its_mask_settings() -> None:
    class Smallest(DynamicSparsityAlgorithm):
        def update_mask(self, p: torch.Tensor, mask: torch.Tensor, sparsity: Share) -> torch.Tensor:
            return self.mask_settings.keep_largest(self.current, 1 / (1 + p.abs()), sparsity, preferred=mask)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    algorithm = Smallest(sparsity=0.75, pattern="2:4", update={"freq": 1})
    Group({"fc1.weight": algorithm}).attach(model, optimizer)
    first = algorithm.masks()["fc1.weight"].clone()
    train(model, optimizer, range(2))

    mask = algorithm.masks()["fc1.weight"]
    assert not torch.equal(mask, first)
    assert int(mask.sum()) == mask.numel() // 4
    assert conforms(algorithm.pattern, algorithm.sparse_params["fc1.weight"].matrix, mask)
