"""Calls in the wrong order and things of the wrong kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from training.sparse.loops import Net, batch_at, matrix, train

from sift_onnx.errors import SiftError, UsageError
from sift_onnx.training.sparse import GMP, SET, Group, RigL, Static


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_second_optimizer_is_refused() -> None:
    model = Net()
    algorithm = Static(sparsity=0.5)
    algorithm.attach(model, first := sgd(model))
    with pytest.raises(RuntimeError, match="several optimizers"):
        algorithm.apply(sgd(model))
    with pytest.warns(UserWarning, match="sparsified already"):
        algorithm.apply(first)


def test_a_second_optimizer_of_a_member_is_refused() -> None:
    model = Net()
    group = Group({"*": Static(sparsity=0.5)})
    group.attach(model, sgd(model))
    with pytest.raises(RuntimeError, match="several optimizers"):
        group[0].apply(sgd(model))


def test_an_optimizer_without_its_model_is_refused_at_its_first_step() -> None:
    model = Net()
    optimizer = sgd(model)
    Static(sparsity=0.5).apply(optimizer)
    with pytest.raises(RuntimeError, match=r"call model\.apply\(sparsity\)"):
        train(model, optimizer, range(1))


def test_a_mask_is_not_updated_before_it_is_used() -> None:
    model = matrix()
    algorithm = Static(sparsity=0.5)
    algorithm.apply(model)
    (parameter,) = algorithm.sparse_params.values()
    with pytest.raises(RuntimeError, match="before it was used"):
        parameter.mask = ~parameter.mask
    model(torch.ones(1, 20))
    parameter.mask = ~parameter.mask

    fresh = Static(sparsity=0.5)
    fresh.sparsify_parameter(other := matrix(), "weight", other.weight)
    with pytest.raises(RuntimeError, match="before it was initialized"):
        fresh.sparse_params["weight"].mask = parameter.mask


def test_rigl_needs_dense_gradients() -> None:
    model = matrix()
    algorithm = RigL(sparsity=0.5)
    algorithm.apply(model)
    model(torch.ones(1, 20)).sum().backward()
    with pytest.raises(RuntimeError, match="RigL needs the dense gradient of 'weight'"):
        algorithm.update()


def test_a_module_that_is_gone_is_told() -> None:
    algorithm = Static(sparsity=0.5)
    model = matrix()
    algorithm.apply(model)
    (parameter,) = algorithm.sparse_params.values()
    del model
    with pytest.raises(RuntimeError, match="no longer exists"):
        _ = parameter.mask


@pytest.mark.parametrize("sparsity", [0, 1, [0.1, 0.2], {"type": "constant", "value": 0.5}, lambda step: 0.5, True])
def test_static_takes_floats_alone(sparsity: Any) -> None:
    with pytest.raises(ValueError, match="a float such as"):
        Static(sparsity)


@pytest.mark.parametrize("sparsity", [1.0, -0.1, 1.5])
def test_static_takes_shares_below_one_alone(sparsity: float) -> None:
    with pytest.raises(ValueError, match=r"use 0\.0 <= sparsity < 1\.0"):
        Static(sparsity)


def test_gmp_of_a_constant_is_refused() -> None:
    with pytest.raises(ValueError, match="would never change a mask"):
        GMP(sparsity=0.5, update={"freq": 5})


def test_sparsity_has_to_be_given() -> None:
    with pytest.raises(UsageError, match="expected `sparsity`, but got none"):
        Static().apply(matrix())


def test_sparsity_by_parameter_has_to_be_complete() -> None:
    model = torch.nn.Sequential(matrix(), matrix())
    algorithm = SET(sparsity={model[0].weight: 0.25})
    with pytest.raises(KeyError, match="has no sparsity for this parameter"):
        algorithm.apply(model)
    algorithm = SET(sparsity={model[0].weight: 0.25, model[1].weight: [0.5, 0.6]})
    other = torch.nn.Sequential(matrix(), matrix())
    with pytest.raises(KeyError):
        algorithm.apply(other)


def test_sparsity_by_parameter() -> None:
    model = torch.nn.Sequential(matrix(), matrix())
    SET(sparsity={model[0].weight: 0.25, model[1].weight: [0.5, 0.6]}).apply(model)
    assert [int(layer.weight_mask.sum()) for layer in model] == [300, 200]


def test_setting_the_sparsity_keeps_that_of_single_parameters() -> None:
    model = torch.nn.Sequential(matrix(), matrix())
    algorithm = SET(sparsity={model[0].weight: 0.25})
    algorithm.sparsity = 0.5
    algorithm.apply(model)
    assert [int(layer.weight_mask.sum()) for layer in model] == [300, 200]


def test_groups_hold_algorithms() -> None:
    with pytest.raises(RuntimeError, match="the group is empty"):
        Group().apply(matrix())
    with pytest.raises(TypeError, match=r"merge two groups with extend\(\)"):
        Group({"*": Group()})
    with pytest.raises(TypeError, match="not int"):
        Group({"*": 3})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="a filter is a glob"):
        Group().add(3, Static(sparsity=0.5))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"use add\(\)"):
        Group().extend(Static(sparsity=0.5))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"group\[0\].sparsity"):
        _ = Group().sparsity
    with pytest.raises(RuntimeError, match=r"group\[0\].sparsity = 0.9"):
        Group().sparsity = 0.9


@pytest.mark.parametrize("glob", ["fc3.*", "FC1.*", ("fc1.*", "head")])
def test_a_glob_that_matches_nothing_is_refused(glob: Any) -> None:
    with pytest.raises(UsageError, match=r"matches no parameter; the model has 'stem\.weight', .* and 5 others"):
        Group({glob: Static(sparsity=0.5)}).apply(Net())


def test_a_function_that_matches_nothing_warns() -> None:
    group = Group({(lambda name, p: False): Static(sparsity=0.5)})
    with (
        pytest.warns(UserWarning, match="no parameters of Net were sparsified"),
        pytest.warns(UserWarning, match="no parameters were left for Static"),
    ):
        group.apply(Net())


def test_wrong_kinds_are_refused() -> None:
    algorithm = Static(sparsity=0.5)
    with pytest.raises(TypeError, match="expected a module or an optimizer"):
        algorithm.apply(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'take' or 'skip'"):
        SET(sparsity=0.5, weight_step="never")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'keep' or 'zero'"):
        SET(sparsity=0.5, regrown="never")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="needs an optimizer"):
        algorithm.finalize_grads()


def test_applying_twice_warns_and_changes_nothing() -> None:
    model = Net()
    algorithm = Static(sparsity=0.5)
    algorithm.apply(model)
    before = algorithm.masks()["fc1.weight"].clone()
    with pytest.warns(UserWarning, match="no parameters of Net were sparsified"):
        algorithm.apply(model)
    assert torch.equal(algorithm.masks()["fc1.weight"], before)


def test_a_second_algorithm_leaves_the_masks_of_the_first() -> None:
    model = matrix()
    Static(sparsity=0.5).apply(model)
    with (
        pytest.warns(UserWarning, match="no parameters of Linear"),
        pytest.warns(UserWarning, match="has a mask already"),
    ):
        Static(sparsity=0.25).apply(model)
    assert int(model.weight_mask.sum()) == 200


def test_sparse_gradients_are_refused_in_words() -> None:
    model = torch.nn.Embedding(10, 4, sparse=True)
    optimizer = sgd(model)
    Static(sparsity=0.5).attach(model, optimizer)
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(SiftError, match=r"use Embedding\(sparse=False\)"):
        optimizer.step()


def test_parameters_without_gradient_keep_their_masks() -> None:
    model = Net()
    model.fc1.weight.requires_grad_(False)
    optimizer = sgd(model)
    algorithm = SET(sparsity=0.5)
    algorithm.attach(model, optimizer)
    before = {name: mask.clone() for name, mask in algorithm.masks().items()}
    train(model, optimizer, range(1))

    kept = [name for name, mask in algorithm.masks().items() if torch.equal(mask, before[name])]
    assert "fc1.weight" in kept
    assert "fc2.weight" not in kept


def test_two_forward_passes_before_one_backward_pass() -> None:
    model = Net()
    Static(sparsity=0.5).attach(model, sgd(model))
    (model(batch_at(0)[0]).sum() + model(batch_at(1)[0]).sum()).backward()
    assert model.fc1.weight.grad is not None
