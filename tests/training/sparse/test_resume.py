"""N + M steps equal N steps, a checkpoint, and M steps, bit by bit, for every algorithm."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from training.sparse.loops import Net, state, train

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse import GMP, IMP, SET, Group, RigL, Static, spdf

COSINE = {"type": "cosine", "init": 0.5, "half_period": 20}
ALGORITHMS: dict[str, Callable[[int], Any]] = {
    "static": lambda seed: Static(sparsity=0.8, seed=seed),
    "static metrics": lambda seed: Static(sparsity=0.8, seed=seed, metrics=True),
    "gmp": lambda seed: GMP(sparsity={"type": "cubic", "final": 0.9, "stop": 12}, update={"freq": 2}, seed=seed),
    "gmp cycling": lambda seed: GMP(sparsity=[0.5, 0.6, 0.7, 0.2], update={"freq": 2}, seed=seed),
    "set": lambda seed: SET(sparsity=0.8, drop_fraction=COSINE, update={"freq": 2}, seed=seed, metrics=True),
    "set cycling": lambda seed: SET(
        sparsity=[0.7, 0.8, 0.9], drop_fraction=[0.5, 0.3], update={"freq": 2}, seed=seed, regrown="zero"
    ),
    "rigl": lambda seed: RigL(sparsity=0.8, drop_fraction=COSINE, update={"freq": 3}, seed=seed, distribution="erk"),
    "rigl 2:4": lambda seed: RigL(sparsity=0.6, update={"freq": 2}, seed=seed, pattern="2:4"),
    "rigl cbsparse": lambda seed: RigL(sparsity=0.8, update={"freq": 2}, seed=seed, compat="cbsparse"),
    "rigl balanced": lambda seed: RigL(sparsity=0.5, update={"freq": 2}, seed=seed, balance_out_groups=2),
    "imp": lambda seed: IMP(sparsity=0.8, rounds=3, rewind_to=2, update={"freq": 4}, seed=seed),
    "spdf": lambda seed: spdf(0.75, 6, algorithm="rigl", update={"freq": 2}, seed=seed)[0],
}


def run(make: Callable[[int], Any], seed: int, init_seed: int, optimizer: str) -> tuple[Any, Any, Any]:
    model = Net(init_seed)
    kinds: dict[str, Any] = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    }
    opt = kinds[optimizer](model.parameters())
    group = Group({("body.weight", "fc*.weight"): make(seed), "stem.*": Static(sparsity=0.5, seed=seed)})
    group.attach(model, opt)
    return model, opt, group


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("stop", [5, 8])
def test_a_resumed_run_is_the_same_run(name: str, stop: int) -> None:
    optimizer = "adamw" if stop == 5 else "sgd"
    model, opt, group = run(ALGORITHMS[name], 3, 0, optimizer)
    train(model, opt, range(stop))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": opt.state_dict(), "sparsity": group.state_dict()}, file)
    train(model, opt, range(stop, 14))

    other, other_opt, other_group = run(ALGORITHMS[name], 4, 1, optimizer)
    checkpoint = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    other.load_state_dict(checkpoint["model"])
    other_opt.load_state_dict(checkpoint["optimizer"])
    other_group.load_state_dict(checkpoint["sparsity"])
    train(other, other_opt, range(stop, 14))

    for ours, theirs in zip(state(model, opt), state(other, other_opt), strict=True):
        assert torch.equal(ours, theirs)
    assert str(group.state_dict()) == str(other_group.state_dict())


def test_the_steps_that_masks_change_at_are_part_of_the_run() -> None:
    model, opt, group = run(ALGORITHMS["set"], 3, 0, "sgd")
    train(model, opt, range(5))
    (state_of_set, state_of_static) = group.state_dict()

    assert state_of_set["step"] == state_of_static["step"] == 5
    assert state_of_set["seed"] == 3


def resumed(saved: Any, algorithm: Any) -> None:
    model = Net()
    model.apply(algorithm)
    algorithm.load_state_dict(saved)


def test_another_recipe_or_model_is_refused() -> None:
    saving = SET(sparsity=0.8, update={"freq": 2})
    model = Net()
    model.apply(saving)
    saved = saving.state_dict()

    resumed(saved, SET(sparsity=0.8, update={"freq": 2}))
    for algorithm, message in [
        (SET(sparsity=0.7, update={"freq": 2}), r"has sparsity Constant\(value=0.8\), this one Constant\(value=0.7\)"),
        (SET(sparsity=0.8, update={"freq": 3}), "has update FreqSchedule"),
        (SET(sparsity=0.8, update={"freq": 2}, drop_fraction=0.1), "has drop_fraction"),
        (SET(sparsity=0.8, update={"freq": 2}, pattern="unstructured", compat="cstorch"), "has compat None"),
        (RigL(sparsity=0.8, update={"freq": 2}), "has algorithm set, this one rigl"),
        (Group({"fc*": SET(sparsity=0.8, update={"freq": 2})}), "has shape of 'stem.weight'"),
        (Group({"fc*": Static(0.8), "*": Static(0.8)}), "has 1 sparsity algorithms, this one 2"),
    ]:
        with pytest.raises(UsageError, match=message):
            resumed(saved, algorithm)
    with pytest.raises(UsageError, match="this is not a state"):
        resumed({"masks": 1}, Static(sparsity=0.5))


def test_a_state_that_cstorch_wrote_is_read() -> None:
    algorithm = SET(sparsity=[0.5, 0.6, 0.7], update={"freq": 2})
    model = Net()
    model.apply(algorithm)
    algorithm.load_state_dict({"step": torch.tensor(7), "sparsity": {"stem.weight": {"index": torch.tensor(2)}}})

    assert algorithm.step == 7
    assert algorithm.sparse_params["stem.weight"].schedule(7) == 0.7
    with pytest.raises(UsageError, match=r"schedule for 'fc9\.weight', which has none here"):
        algorithm.load_state_dict({"step": 7, "sparsity": {"fc9.weight": {"index": 2}}})
