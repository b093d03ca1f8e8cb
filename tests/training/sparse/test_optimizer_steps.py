"""Around an optimizer's step: what is masked, when, and what RigL sees of the gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from training.sparse.loops import Net, batch_at, matrix, train

from sift_onnx.training.sparse import SET, Group, RigL, Static, attach

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "asgd": lambda p: torch.optim.ASGD(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p),
}


def weights_only(algorithm: Any) -> Group:
    return Group({("body.weight", "fc*.weight"): algorithm})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_and_states_are_zero_where_masks_are_after_every_step(name: str) -> None:
    model = Net()
    optimizer = OPTIMIZERS[name](model.parameters())
    group = weights_only(RigL(sparsity=0.8, update={"freq": 2}))
    group.attach(model, optimizer)
    masks = {name: mask.clone() for name, mask in group.masks().items()}

    def check(step: int) -> None:
        for param in group.get_sparse_params(optimizer):
            assert int(param.mask.sum()) == param.param.numel() // 5
            same_shape = [s for s in optimizer.state[param.param].values() if s.shape == param.param.shape]
            for tensor in [param.param, *same_shape]:
                assert not tensor[~param.mask].any()
            grown = param.mask & ~masks[param.name]
            masks[param.name] = param.mask.clone()
            assert not param.param[grown].any()
            assert bool(grown.any()) == (step % 2 == 1)

    train(model, optimizer, range(4), check)


def test_states_that_require_dense_stay_dense() -> None:
    model = matrix()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.state[model.weight]["momentum_buffer"] = buffer = torch.ones(20, 20)
    buffer.requires_dense = True  # type: ignore[attr-defined]
    Static(sparsity=0.5).attach(model, optimizer)
    model(torch.ones(1, 20)).sum().backward()
    optimizer.step()

    assert bool(buffer.all())


def test_pruned_weights_do_not_count_when_gradients_are_clipped() -> None:
    norms = []
    for finalize in (True, False):
        model = matrix()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        algorithm = Static(sparsity=0.75)
        algorithm.attach(model, optimizer)
        model(torch.ones(1, 20)).sum().backward()
        if finalize:
            algorithm.finalize_grads()
            algorithm.finalize_grads()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()

    assert norms == [pytest.approx(10.0), pytest.approx(20.0)]


def test_nan_in_the_gradient_of_a_pruned_weight_is_harmless() -> None:
    model = matrix()
    optimizer = torch.optim.Adam(model.parameters())
    algorithm = Static(sparsity=0.5)
    algorithm.attach(model, optimizer)
    model(torch.ones(1, 20)).sum().backward()
    assert model.weight.grad is not None
    model.weight.grad[~model.weight_mask] = float("nan")
    optimizer.step()

    assert bool(model.weight.isfinite().all())


@pytest.mark.parametrize("finalize", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_rigl_grows_by_the_dense_accumulated_gradient(finalize: bool, clip: bool) -> None:
    model = matrix()
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    algorithm = RigL(sparsity=0.9, update={"freq": 1})
    algorithm.attach(model, optimizer)
    mask = model.weight_mask.clone()
    reference.load_state_dict({"weight": model.weight.detach().clone()})
    parts = [torch.randn(3, 20, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    for part in parts:
        (model(part).square().sum() / 3).backward()
        (reference(part).square().sum() / 3).backward()
    if finalize:
        algorithm.finalize_grads()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()

    kept_count = 40 - 12
    kept = mask & (model.weight.abs() >= model.weight[mask].abs().sort().values[40 - kept_count])
    assert reference.weight.grad is not None
    scores = reference.weight.grad.abs().masked_fill(kept, -1)
    grown = scores >= scores.flatten().sort().values[-12]
    assert torch.equal(model.weight_mask, kept | grown)


def test_grown_weights_start_at_zero_and_regrown_ones_keep_their_value_unless_told() -> None:
    for regrown in ("keep", "zero"):
        model = matrix()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        # All active weights are dropped, and those of the largest gradients grow: many were active just before.
        RigL(sparsity=0.25, drop_fraction=1.0, regrown=regrown, update={"freq": 2}).attach(model, optimizer)  # type: ignore[arg-type]
        for step in (1, 2):
            before = model.weight_mask.clone()
            optimizer.zero_grad()
            model(torch.ones(2, 20)).square().sum().backward()
            optimizer.step()
            if step == 2:
                both = before & model.weight_mask
                states = optimizer.state[model.weight]["momentum_buffer"]
                assert bool(both.any())
                assert bool(model.weight[both].any()) == (regrown == "keep")
                assert bool(states[both].any()) == (regrown == "keep")


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("finalize", [False, True])
def test_steps_that_a_gradient_scaler_skips_do_not_count(fused: bool, finalize: bool) -> None:
    masks = []
    for skips in ({1, 2, 4}, set()):
        model = matrix()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=fused)
        algorithm = RigL(sparsity=0.9, update={"freq": 2})
        algorithm.attach(model, optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=128)
        done = 0
        for call in range(12):
            infinite = call in skips
            x = torch.full((2, 20), float("inf")) if infinite else torch.eye(20)[:2] + 0.1 * done
            optimizer.zero_grad()
            scaler.scale(model(x).square().sum()).backward()
            # A loop that clips calls finalize_grads; here every second step does.
            if finalize and call % 2:
                scaler.unscale_(optimizer)
                algorithm.finalize_grads()
            scaler.step(optimizer)
            scaler.update()
            done += not infinite
            assert algorithm.step == done
            if done == 8:
                break
        masks.append(model.weight_mask.clone())

    assert torch.equal(masks[0], masks[1])


def test_bfloat16_autocast_trains_within_masks() -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    group = weights_only(RigL(sparsity=0.8, update={"freq": 2}))
    group.attach(model, optimizer)
    for step in range(4):
        x, y = batch_at(step)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    assert all(not p.param[~p.mask].any() for p in group.get_sparse_params(model))


def test_half_precision_parameters_are_scored_in_single_precision() -> None:
    model = matrix().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    RigL(sparsity=0.5, update={"freq": 1}).attach(model, optimizer)
    model(torch.ones(1, 20, dtype=torch.bfloat16)).square().sum().backward()
    optimizer.step()

    assert int(model.weight_mask.sum()) == 200


def test_a_copy_and_an_average_of_the_model_can_be_pruned() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    group = weights_only(SET(sparsity=0.8, update={"freq": 2}))
    group.attach(model, optimizer)
    average = copy.deepcopy(model)
    train(model, optimizer, range(2))
    with torch.no_grad():
        for ours, theirs in zip(average.parameters(), model.parameters(), strict=True):
            ours.lerp_(theirs, 0.5)
    group.prune_copy(average)

    assert average(batch_at(0)[0]).shape == (16, 10)
    for name, mask in group.masks().items():
        assert not average.get_parameter(name)[~mask].any()


def test_writing_to_weights_is_noticed_by_the_next_forward_pass() -> None:
    model = matrix()
    Static(sparsity=0.5).apply(model)
    with torch.no_grad():
        model.weight.fill_(1)
    model(torch.ones(1, 20))

    assert torch.equal(model.weight, model.weight_mask.float())


def test_a_closure_trains_within_masks() -> None:
    model = matrix()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    attach(Static(sparsity=0.5), model, optimizer)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(torch.ones(2, 20)) - 1).square().sum()
        loss.backward()
        return loss

    first, last = float(closure().detach()), 0.0
    for _ in range(3):
        last = float(optimizer.step(closure).detach())

    assert last < first
    assert not model.weight[~model.weight_mask].any()


def rigl_masks(how: str, keeps_tensors: bool = False) -> list[list[bool]]:
    """Masks after each of a few updates, with gradients computed before the step or in a closure."""
    model = matrix()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    algorithm = attach(RigL(sparsity=0.8, update={"freq": 1}), model, optimizer)
    masks = []
    for step in range(4):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad(set_to_none=not keeps_tensors)
            loss = model(torch.randn(8, 20, generator=torch.Generator().manual_seed(step))).square().sum()
            loss.backward()
            if how == "finalizing closure":
                algorithm.finalize_grads()
            return loss

        if how == "loop":
            closure()
            optimizer.step()
        else:
            optimizer.step(closure)
        masks.append(model.weight_mask.flatten().tolist())
    return masks


@pytest.mark.parametrize("keeps_tensors", [False, True])
def test_a_closure_that_finalizes_its_gradients_has_the_masks_of_a_loop(keeps_tensors: bool) -> None:
    assert rigl_masks("finalizing closure", keeps_tensors) == rigl_masks("loop")


@pytest.mark.parametrize("keeps_tensors", [False, True])
def test_gradients_of_the_last_step_do_not_pass_for_those_of_a_closure(keeps_tensors: bool) -> None:
    with pytest.raises(RuntimeError, match=r"closure computes .* call sparsity.finalize_grads\(\) at its end"):
        rigl_masks("closure", keeps_tensors)


def test_parameters_that_are_compiled_or_wrapped_keep_their_names() -> None:
    model = torch.nn.Module()
    model._orig_mod = Net()
    algorithm = Static(sparsity=0.5)
    algorithm.apply(model)

    assert "fc1.weight" in algorithm.sparse_params
