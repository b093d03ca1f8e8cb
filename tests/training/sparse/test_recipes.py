"""What cstorch lacks: rewinding, densifying, Erdős-Rényi-Kernel, and metrics of masks."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from training.sparse.loops import Net, matrix, state, train

from sift_onnx.errors import BudgetError, UsageError
from sift_onnx.training.sparse import (
    GMP,
    IMP,
    SET,
    Group,
    MaskHistory,
    RigL,
    Static,
    attach,
    configure,
    erk_counts,
    spdf,
)

FILTER = ("body.weight", "fc*.weight")


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


@pytest.mark.parametrize("rewind_to", [0, 3])
def test_each_round_prunes_within_the_last_and_goes_back_to_the_early_step(rewind_to: int) -> None:
    model = Net()
    optimizer = adam(model)
    algorithm = IMP(sparsity=0.8, rounds=2, rewind_to=rewind_to, update={"freq": 5})
    rewound: list[int] = []
    algorithm.register_rewind_hook(lambda _, step: rewound.append(step))
    Group({FILTER: algorithm, "stem.*": Static(sparsity=0.5)}).attach(model, optimizer)
    early: dict[str, torch.Tensor] = {}
    masks: list[torch.Tensor] = []
    if rewind_to == 0:
        early = {name: t.clone() for name, t in model.state_dict().items()}

    def check(done: int) -> None:
        step = done + 1
        if step == rewind_to:
            early.update({name: t.clone() for name, t in model.state_dict().items()})
        if step in (5, 10):
            mask = model.fc1.weight_mask.clone()  # type: ignore[operator,union-attr]
            assert torch.equal(model.fc1.weight, early["fc1.weight"] * mask)
            assert torch.equal(model.fc2.bias, early["fc2.bias"])
            assert torch.equal(model.norm.running_mean, early["norm.running_mean"])  # type: ignore[arg-type]
            assert torch.equal(model.stem.weight, early["stem.weight"])
            assert (model.fc2.bias in optimizer.state) == (rewind_to > 0)
            masks.append(mask)

    train(model, optimizer, range(17), check)

    assert rewound == [rewind_to] * 2
    assert [int(mask.sum()) for mask in masks] == [math.floor(8192 * math.sqrt(0.2)), math.floor(8192 * 0.2)]
    assert not (masks[1] & ~masks[0]).any()
    assert torch.equal(model.fc1.weight_mask, masks[1])  # type: ignore[arg-type]


def test_a_rewound_round_is_the_training_of_its_ticket() -> None:
    model = Net()
    optimizer = adam(model)
    imp = IMP(sparsity=[0.5], update={"steps": [4]})
    Group({FILTER: imp}).attach(model, optimizer)
    train(model, optimizer, range(4))
    ticket = imp.masks()

    other = Net()
    Group({FILTER: Static()}).attach(other, other_optimizer := adam(other), masks=ticket)
    train(model, optimizer, range(10, 14))
    train(other, other_optimizer, range(10, 14))

    assert all(torch.equal(a, b) for a, b in zip(state(model, optimizer), state(other, other_optimizer), strict=True))


def test_rounds_that_make_no_sense_are_refused() -> None:
    for settings_, message in [
        ({"sparsity": [0.5, 0.4]}, "sparsities of rounds rise"),
        ({"sparsity": [0.5], "rounds": 2}, "leave 'rounds' out"),
        ({"sparsity": 1.0}, "out of range"),
        ({"sparsity": 0.5, "rounds": 0}, "out of range"),
        ({"sparsity": None}, "needs the sparsity after the last round"),
        ({"sparsity": 0.5, "rewind_to": 6, "update": {"freq": 5}}, "cannot rewind to step 6 at step 5"),
        ({"sparsity": 0.5, "rewind_to": -1}, "cannot rewind"),
    ]:
        with pytest.raises(UsageError, match=message):
            IMP(**settings_)  # type: ignore[arg-type]


def test_spdf_trains_sparse_and_then_dense() -> None:
    model = Net()
    optimizer = adam(model)
    recipe = spdf(0.75, 4, algorithm="rigl", update={"freq": 2}, param_filter=list(FILTER))
    recipe.attach(model, optimizer)
    total = sum(mask.numel() for mask in recipe.masks().values())
    nnz, zeros = [], []

    def check(_: int) -> None:
        nnz.append(sum(int(mask.sum()) for mask in recipe.masks().values()))
        zeros.append(sum(int((model.get_parameter(name) == 0).sum()) for name in recipe.masks()))

    train(model, optimizer, range(7), check)

    assert nnz == [total // 4] * 3 + [total] * 4
    assert zeros[3] >= 3 * total // 4
    assert zeros[6] < total // 2
    assert recipe[0].is_dense


def test_densifying_is_a_setting_of_a_recipe_too() -> None:
    group = configure("{algorithm: static, sparsity: 0.75, densify_at: 2}")
    assert group is not None
    model = Net()
    group.attach(model, optimizer := adam(model))
    train(model, optimizer, range(2))

    assert group[0].is_dense
    with pytest.raises(UsageError, match="use 1 or more"):
        spdf(0.5, 0)
    with pytest.raises(UsageError, match="needs a sparsity"):
        spdf(None, 5)


def test_attach_takes_configurations() -> None:
    model = Net()
    found = attach({"algorithm": "rigl", "sparsity": 0.9, "update": {"freq": 100}}, model, adam(model))
    assert found is not None
    assert list(found.masks()) == ["stem.weight", "body.weight", "fc1.weight", "fc2.weight"]
    assert attach({"sparsity": None}, model, adam(model)) is None


def test_erk_gives_small_layers_a_higher_density_and_meets_the_total() -> None:
    model = Net()
    group = Group({FILTER: RigL(sparsity=0.7, update={"freq": 1}, distribution="erk")})
    group.attach(model, optimizer := adam(model))
    densities = {name: float(mask.float().mean()) for name, mask in group.masks().items()}
    nnz = {name: int(mask.sum()) for name, mask in group.masks().items()}
    train(model, optimizer, range(3))

    sizes = {name: mask.numel() for name, mask in group.masks().items()}
    assert densities["fc2.weight"] == 1.0 > densities["fc1.weight"] > densities["body.weight"]
    assert sum(nnz.values()) == 3 * sum(sizes.values()) // 10
    assert {name: int(mask.sum()) for name, mask in group.masks().items()} == nnz


def test_erk_follows_a_schedule() -> None:
    model = Net()
    group = Group({FILTER: GMP(sparsity=[0.5, 0.8], update={"freq": 1}, distribution="erk")})
    group.attach(model, optimizer := adam(model))
    total = sum(mask.numel() for mask in group.masks().values())
    assert sum(int(mask.sum()) for mask in group.masks().values()) == total // 2
    train(model, optimizer, range(1))

    assert sum(int(mask.sum()) for mask in group.masks().values()) == total // 5


@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=1, max_size=6), st.integers(0, 99))
def test_erk_counts_sum_to_the_floor_of_the_total_and_fit(shapes: list[list[int]], percent: int) -> None:
    named = {str(i): shape for i, shape in enumerate(shapes)}
    sizes = {name: math.prod(shape) for name, shape in named.items()}
    total = sum(sizes.values()) * (100 - percent) // 100
    assume(total >= 5 * sum(map(sum, shapes)) or percent == 0)
    try:
        counts = erk_counts(named, percent / 100)
    except BudgetError:
        assume(False)

    assert sum(counts.values()) == total
    assert all(0 < counts[name] <= sizes[name] for name in named)


def test_metrics_follow_masks() -> None:
    model = matrix()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    algorithm = SET(sparsity=0.9, update={"freq": 1}, metrics=True)
    algorithm.attach(model, optimizer)
    masks = [model.weight_mask.clone()]
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(1, 20)).sum().backward()
        optimizer.step()
        masks.append(model.weight_mask.clone())
    history = algorithm.history
    assert isinstance(history, MaskHistory)
    found = history.of("weight")

    together = torch.stack(masks)
    assert found.itop == pytest.approx(float(together.any(0).float().mean()))
    assert found.doc == pytest.approx(float(together.all(0).float().mean()))
    assert found.density == pytest.approx(0.1)
    assert found.churn == float((masks[-1] & ~masks[-2]).sum()) / 40
    assert history.total() == found == history.report()["weight"]
    assert found.doc < found.density < found.itop


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=11, max_size=11), min_size=1, max_size=5))
def test_metrics_survive_saving(masks: list[list[bool]]) -> None:
    history, copy = MaskHistory(), MaskHistory()
    tensors = [torch.tensor(mask) for mask in masks]
    history.start("w", tensors[0])
    for old, new in itertools.pairwise(tensors):
        history.update("w", old, new)
    copy.load_state_dict(history.state_dict())

    assert copy.of("w") == history.of("w")
    assert history.of("w").doc <= history.of("w").density <= history.of("w").itop


def test_densified_masks_are_followed_too() -> None:
    model = matrix()
    algorithm = Static(sparsity=0.75, metrics=True, densify_at=1)
    algorithm.attach(model, optimizer := adam(model))
    model(torch.ones(1, 20)).sum().backward()
    optimizer.step()

    assert algorithm.history is not None
    assert algorithm.history.of("weight").itop == 1
    assert algorithm.history.of("weight").doc == 0.25


def test_rounds_resume_after_the_last_one_and_nowhere_else() -> None:
    rounds = IMP(sparsity=0.8, rounds=2, update={"freq": 5}).rounds
    rounds.load_state_dict({"index": 2})
    assert rounds.is_over
    for index in (-1, 3):
        with pytest.raises(UsageError, match=f"rounds schedule of 2 values cannot resume at its number {index}"):
            rounds.load_state_dict({"index": index})
