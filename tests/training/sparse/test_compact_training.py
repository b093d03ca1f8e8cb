"""Every algorithm trains compact parameters as it trains dense ones: equal masks, equal weights and states."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from training.sparse.compact_layers import make_compact
from training.sparse.loops import Net, batch_at

from sift_onnx.training import sparse
from sift_onnx.training.sparse.parameters.compact import CompactWeight, compact_weights
from sift_onnx.training.sparse.parameters.dense_gradient import DenseGradient
from sift_onnx.training.trainer.state.full_state import (
    full_optimizer_state,
    full_state,
    load_full_model,
    load_full_optimizer,
)

_EVERY_3 = {"freq": 3}
_CUBIC = {"type": "cubic", "init": 0.3, "final": 0.9, "start": 0, "stop": 12}

_RECIPES: dict[str, Callable[[], sparse.SparsityAlgorithm]] = {
    "static": lambda: sparse.Static(sparsity=0.8),
    "densified": lambda: sparse.Static(sparsity=0.8, densify_at=6),
    "set": lambda: sparse.SET(sparsity=0.8, update=_EVERY_3),
    "set, regrown at zero": lambda: sparse.SET(sparsity=0.8, update=_EVERY_3, regrown="zero"),
    "rigl": lambda: sparse.RigL(sparsity=0.8, update=_EVERY_3),
    "rigl at every step": lambda: sparse.RigL(sparsity=0.8),
    "rigl, no weight step": lambda: sparse.RigL(sparsity=0.8, update=_EVERY_3, weight_step="skip"),
    "rigl, erk": lambda: sparse.RigL(sparsity=0.8, update=_EVERY_3, distribution="erk"),
    "rigl, cbsparse": lambda: sparse.RigL(sparsity=0.8, update={"freq": 3, "stop": 20}, compat="cbsparse"),
    "rigl, cstorch": lambda: sparse.RigL(sparsity=0.8, update=_EVERY_3, compat="cstorch"),
    "rigl, rising": lambda: sparse.RigL(sparsity=_CUBIC, update=_EVERY_3, start_sparse=True),
    "rigl, balanced": lambda: sparse.RigL(sparsity=0.75, update=_EVERY_3, balance_out_groups=2),
    "rigl, 2:4": lambda: sparse.RigL(sparsity=0.5, update=_EVERY_3, pattern="2:4"),
    "rigl, blocks": lambda: sparse.RigL(sparsity=0.5, update=_EVERY_3, pattern="block:2x2"),
    "gmp": lambda: sparse.GMP(sparsity=_CUBIC, update=_EVERY_3, start_sparse=True),
    "imp": lambda: sparse.IMP(sparsity=0.8, rounds=3, rewind_to=2, update={"freq": 4}),
}

_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
}


class Run:
    """A network that trains, compact or not."""

    def __init__(self, recipe: str, kind: str, compact: bool) -> None:
        self.model = Net().double()
        params = list(self.model.parameters())
        self.optimizer = _OPTIMIZERS[kind](params)
        self.algorithm = sparse.Group({"body.weight": _RECIPES[recipe](), "fc1.weight": _RECIPES[recipe]()})
        self.algorithm.attach(self.model, self.optimizer)
        self.weights = make_compact(self.model, self.optimizer) if compact else {}
        self.loss = torch.zeros(())

    def step(self, step: int, parts: int = 1, scale: float = 1.0) -> None:
        self.optimizer.zero_grad()
        for part in range(parts):
            x, y = batch_at(step * parts + part)
            # The graph of the step before is alive until here.
            self.loss = torch.nn.functional.cross_entropy(self.model(x.double()), y) * scale
            self.loss.backward()
        for param in self.model.parameters():
            if scale != 1 and param.grad is not None:
                param.grad /= scale
        self.algorithm.finalize_grads()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def states(self) -> list[torch.Tensor]:
        weights = {weight.values: weight for weight in compact_weights(self.model).values()}
        found: list[torch.Tensor] = []
        for param in self.model.parameters():
            states = self.optimizer.state.get(param, {})
            states = weights[param].dense_states(states) if param in weights else states
            found += [torch.as_tensor(value) for value in states.values() if value is not None]
        return found


def _assert_equal(dense: Run, compact: Run) -> None:
    masks, found = dense.algorithm.masks(), compact.algorithm.masks()
    assert all(torch.equal(mask, found[name]) for name, mask in masks.items())
    wanted = dense.model.state_dict()
    got = compact.model.state_dict()
    assert list(got) == list(wanted)
    for name, tensor in wanted.items():
        torch.testing.assert_close(got[name], tensor)
    for state, other in zip(dense.states(), compact.states(), strict=True):
        torch.testing.assert_close(other, state)


@pytest.mark.parametrize("kind", _OPTIMIZERS)
@pytest.mark.parametrize("recipe", _RECIPES)
def test_masks_weights_and_states_are_those_of_a_dense_parameter(recipe: str, kind: str) -> None:
    dense, compact = Run(recipe, kind, compact=False), Run(recipe, kind, compact=True)
    assert len(compact.weights) == 2
    for step in range(14):
        dense.step(step)
        compact.step(step)
        _assert_equal(dense, compact)
        for weight in compact.weights.values():
            assert weight.values.shape == (weight.nnz,)


@pytest.mark.parametrize(("parts", "scale"), [(3, 1.0), (1, 65536.0), (2, 1024.0)])
def test_rigl_adds_up_accumulated_gradients_and_follows_what_a_scaler_does_to_them(parts: int, scale: float) -> None:
    dense, compact = Run("rigl", "momentum", compact=False), Run("rigl", "momentum", compact=True)
    for step in range(8):
        dense.step(step, parts, scale)
        compact.step(step, parts, scale)
        _assert_equal(dense, compact)


def _kept_in(run: Run, steps: int) -> list[int | None]:
    """How many elements of dense gradients were kept, None for all, each time that one was taken."""
    kept: list[int | None] = []
    take = DenseGradient.take

    def noted(self: DenseGradient, weight: CompactWeight, grad: torch.Tensor) -> None:
        take(self, weight, grad)
        kept.append(None if self._largest is None else self._largest[0].numel())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DenseGradient, "take", noted)
        for step in range(steps):
            run.step(step)
    return kept


def test_rigl_keeps_no_more_of_a_dense_gradient_than_can_grow() -> None:
    run = Run("rigl", "momentum", compact=True)
    dropped = sorted(int(0.3 * weight.nnz) for weight in run.weights.values())
    kept = _kept_in(run, 7)
    assert len(kept) == 4
    assert sorted(map(int, kept[:2])) == sorted(map(int, kept[2:])) == dropped  # type: ignore[arg-type]


def test_a_rule_of_growth_of_ones_own_sees_the_whole_gradient() -> None:
    class Signed(sparse.RigL):
        def growth_scores(self, p: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return -self.dense_gradient()

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_RECIPES, "signed", lambda: Signed(sparsity=0.8, update=_EVERY_3))
        dense, compact = Run("signed", "momentum", compact=False), Run("signed", "momentum", compact=True)
    assert _kept_in(compact, 7) == [None] * 4
    for step in range(7):
        dense.step(step)
    _assert_equal(dense, compact)


@pytest.mark.parametrize("compat", [None, "cstorch", "cbsparse"])
@pytest.mark.parametrize("seed", range(6))
def test_gradients_that_are_equal_or_zero_grow_alike(compat: Any, seed: int) -> None:
    found = []
    for compact in (False, True):
        model = torch.nn.Linear(24, 16, bias=False)
        chance = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            model.weight.copy_(torch.randint(-4, 5, (16, 24), generator=chance))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
        update = {"freq": 2, "start": 0, "stop": 20}
        algorithm = sparse.RigL(sparsity=0.7, update=update, init_method="topk", compat=compat)
        algorithm.attach(model, optimizer)
        if compact:
            make_compact(model, optimizer)
        for _ in range(12):
            x, c = (torch.randint(-1, 2, (2, n), generator=chance).float() for n in (24, 16))
            optimizer.zero_grad()
            (model(x) * c).sum().backward()
            optimizer.step()
            found.append(copy.deepcopy(model.state_dict()))
    for one, other in zip(found[:12], found[12:], strict=True):
        assert torch.equal(one["weight_mask"], other["weight_mask"])
        assert torch.equal(one["weight"], other["weight"])


@pytest.mark.parametrize("to_none", [True, False])
def test_a_step_that_a_scaler_skips_leaves_no_gradient_behind(to_none: bool) -> None:
    runs = [Run("rigl", "momentum", compact=compact) for compact in (False, True)]
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in runs]
    for step in range(9):
        for run, scaler in zip(runs, scalers, strict=True):
            run.optimizer.zero_grad(set_to_none=to_none)
            x, y = batch_at(step)
            loss = torch.nn.functional.cross_entropy(run.model(x.double()), y)
            scaler.scale(loss * (float("inf") if step == 2 else 1.0)).backward()  # type: ignore[no-untyped-call]
            scaler.step(run.optimizer)
            scaler.update()
        _assert_equal(*runs)
    assert runs[0].algorithm[0].step == 8


def test_a_second_backward_pass_that_comes_as_a_surprise_is_refused() -> None:
    run = Run("rigl", "momentum", compact=True)
    for step in range(2):
        run.step(step)
    with pytest.raises(sparse.errors.SparsityStateError, match="several backward passes"):
        run.step(2, parts=2)


def test_an_average_of_the_weights_follows_their_masks() -> None:
    dense, compact = Run("set", "momentum", compact=False), Run("set", "momentum", compact=True)
    averages = [copy.deepcopy(run.model) for run in (dense, compact)]
    for step in range(8):
        for run, average in zip((dense, compact), averages, strict=True):
            run.step(step)
            run.algorithm.prune_copy(average)
            with torch.no_grad():
                for mean, param in zip(average.parameters(), run.model.parameters(), strict=True):
                    mean.lerp_(param, 0.5)
    wanted, found = (dict(average.state_dict()) for average in averages)
    assert torch.equal(found["fc1.weight"] != 0, wanted["fc1.weight"] != 0)
    torch.testing.assert_close(found["fc1.weight"], wanted["fc1.weight"])


def test_an_algorithm_is_not_attached_to_a_compact_model() -> None:
    run = Run("static", "momentum", compact=True)
    with pytest.raises(sparse.errors.SparsityStateError, match="attach the sparsity algorithm to the dense model"):
        sparse.RigL(sparsity=0.5).apply(run.model)


@pytest.mark.parametrize("recipe", ["rigl", "gmp", "imp"])
@pytest.mark.parametrize(("before", "after"), [(True, True), (True, False), (False, True)])
def test_a_checkpoint_resumes_a_run_in_either_form(recipe: str, before: bool, after: bool) -> None:
    old, new = Run(recipe, "adamw", compact=before), Run(recipe, "adamw", compact=after)
    for step in range(7):
        old.step(step)
    new.step(0)
    load_full_model(new.model, full_state(old.model.state_dict()))
    saved = copy.deepcopy(full_optimizer_state(old.optimizer, old.model))
    load_full_optimizer(new.optimizer, saved, new.model)
    new.algorithm.load_state_dict(old.algorithm.state_dict())
    for step in range(7, 14):
        old.step(step)
        new.step(step)
        _assert_equal(old, new)
    if before == after:
        assert all(map(torch.equal, old.model.state_dict().values(), new.model.state_dict().values()))
        assert all(map(torch.equal, old.states(), new.states()))


@pytest.mark.parametrize(("recipe", "updates"), [("rigl", set()), ("set", {2, 5})])
def test_few_steps_make_a_dense_mask(recipe: str, updates: set[int]) -> None:
    run = Run(recipe, "momentum", compact=True)
    made: list[int] = []
    mask = CompactWeight.mask
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompactWeight, "mask", lambda weight: (made.append(step), mask(weight))[1])
        for step in range(6):
            run.step(step)
    # The first step compares ranks' masks; updates come after steps 2 and 5.
    assert updates <= set(made) <= {0} | updates
