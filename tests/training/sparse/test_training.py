"""Training on small pictures: masks evolve, counts hold at every step, and the model learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from training.sparse.loops import Net, images, train

from sift_onnx.training.sparse import GMP, SET, Group, RigL, Static

STEPS, LAST_UPDATE = 150, 112
CHANCE = 0.1
COSINE = {"type": "cosine", "init": 0.3, "half_period": STEPS}
SCHEDULE = {"freq": 10, "stop": LAST_UPDATE}


def accuracy(model: torch.nn.Module) -> float:
    x, y = images(500, seed=7)
    model.eval()
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


@pytest.mark.parametrize(
    "algorithm",
    [
        lambda: Static(sparsity=0.8),
        lambda: SET(sparsity=0.8, drop_fraction=COSINE, update=SCHEDULE, metrics=True),
        lambda: RigL(sparsity=0.8, drop_fraction=COSINE, update=SCHEDULE, metrics=True),
        lambda: RigL(sparsity=0.8, drop_fraction=COSINE, update=SCHEDULE, compat="cstorch", metrics=True),
    ],
)
def test_counts_stay_exact_at_every_step_while_masks_move_and_the_model_learns(algorithm: Any) -> None:
    made = algorithm()
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    Group({("body.weight", "fc*.weight"): made}).attach(model, optimizer)
    exact = {name: p.mask.numel() // 5 for name, p in made.sparse_params.items()}
    # In single precision a fifth of 320 is 63.
    expected = exact if made.compat is None else exact | {"fc2.weight": 63, "body.weight": 230}
    last = {name: p.mask.clone() for name, p in made.sparse_params.items()}
    changes: list[int] = []

    def check(index: int) -> None:
        for name, p in made.sparse_params.items():
            assert int(p.mask.sum()) == p.nnz == expected[name]
            assert not p.param[~p.mask].any()
            if not torch.equal(p.mask, last[name]):
                changes.append(index + 1)
                last[name] = p.mask.clone()

    train(model, optimizer, range(STEPS), check)

    assert sorted(set(changes)) == ([] if isinstance(made, Static) else list(range(10, LAST_UPDATE, 10)))
    assert accuracy(model) > 4 * CHANCE
    if made.history is not None:
        total = made.history.total()
        assert total.doc < 0.2 < total.itop


def test_gradual_pruning_ends_at_its_sparsity_with_nested_masks() -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = {"type": "cubic", "final": 0.8, "stop": 100}
    group = Group({("body.weight", "fc*.weight"): GMP(sparsity=schedule, update={"freq": 10, "stop": 101})})
    group.attach(model, optimizer)
    nnz = []
    train(model, optimizer, range(STEPS), lambda _: nnz.append(sum(int(m.sum()) for m in group.masks().values())))

    assert nnz == sorted(nnz, reverse=True)
    assert nnz[-1] == sum(m.numel() // 5 for m in group.masks().values())
    assert accuracy(model) > 4 * CHANCE
