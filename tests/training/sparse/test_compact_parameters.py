"""Parameters that are vectors of active values: state dicts, copies, pickles, optimizers and moving masks."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training.sparse.compact_layers import Linear
from training.trainer.cases import classifier

import sift_onnx
from sift_onnx.errors import UsageError
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse.errors import SparsityStateError
from sift_onnx.training.sparse.parameters.compact import (
    CompactWeight,
    compact_parameter,
    compact_weight,
    compact_weights,
    dense_parameter,
)
from sift_onnx.training.trainer.optimization import make_optimizer
from sift_onnx.training.trainer.settings import OptimizerSettings


def _layer(mask: torch.Tensor | None = None) -> Linear:
    torch.manual_seed(0)
    layer = Linear(5, 4)
    layer.register_buffer("weight_mask", _mask() if mask is None else mask)
    with torch.no_grad():
        layer.weight *= layer.weight_mask
    return layer


def _mask(every: int = 3) -> torch.Tensor:
    return (torch.arange(20) % every == 0).reshape(4, 5)


def _compact(layer: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> CompactWeight:
    mask = layer._buffers["weight_mask"]
    assert mask is not None
    return compact_parameter(layer, "weight", mask, optimizer)


def _step(layer: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    optimizer.zero_grad()
    loss: torch.Tensor = layer(torch.ones(2, 5)).square().sum()
    loss.backward()
    optimizer.step()
    return loss


def test_the_parameter_keeps_its_name_and_the_state_dict_its_shapes() -> None:
    layer = _layer()
    before = copy.deepcopy(layer.state_dict())
    param = layer.weight
    weight = _compact(layer)
    assert weight is compact_weight(layer, "weight")
    assert weight.values is layer.weight is param
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    assert weight.values.shape == (7,)
    assert weight.indices.tolist() == [0, 3, 6, 9, 12, 15, 18]
    after = layer.state_dict()
    assert list(after) == list(before)
    assert all(
        torch.equal(after[name], tensor) and after[name].dtype == tensor.dtype for name, tensor in before.items()
    )


def test_active_weights_that_are_zero_stay_active() -> None:
    layer = _layer()
    with torch.no_grad():
        layer.weight.zero_()
    assert _compact(layer).nnz == 7
    other = _layer(_mask(2))
    _compact(other)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.state_dict()["weight_mask"], _mask())


def test_loading_another_mask_moves_the_weight() -> None:
    source, layer = _layer(_mask(2)), _layer()
    weight = _compact(layer)
    optimizer = torch.optim.Adam(layer.parameters())
    weight.follow(optimizer)
    loss = _step(layer, optimizer)
    layer.load_state_dict(source.state_dict())
    assert (weight.version, weight.nnz) == (1, 10)
    assert torch.equal(weight.dense(), source.weight)
    assert loss.grad_fn is not None  # A graph of the shorter vector is alive.
    _step(layer, optimizer)
    layer.load_state_dict(layer.state_dict())
    assert weight.version == 1


def test_a_state_dict_that_does_not_fit_is_refused_by_its_dense_shape() -> None:
    layer = _layer()
    _compact(layer)
    state = layer.state_dict()
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "weight_mask"'):
        layer.load_state_dict({name: tensor for name, tensor in state.items() if name != "weight_mask"})
    with pytest.raises(RuntimeError, match=r"has shape \[5, 4\], the dense weight \[4, 5\]"):
        layer.load_state_dict({**state, "weight": state["weight"].T})


def test_copies_and_pickles_are_compact_on_their_own() -> None:
    model = torch.nn.Sequential(_layer(), torch.nn.ReLU())
    weight = _compact(model[0])
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        other = compact_weights(twin)["0.weight"]
        assert other is not weight
        assert other.values is twin[0].weight
        other.move(~_mask())
        assert not torch.equal(twin.state_dict()["0.weight_mask"], model.state_dict()["0.weight_mask"])
        twin.load_state_dict(model.state_dict())
        assert torch.equal(twin(torch.ones(1, 5)), model(torch.ones(1, 5)))


@pytest.mark.parametrize("path", ["weight", "layer.weight"])
def test_an_imported_module_keeps_the_names_of_its_initializers(path: str) -> None:
    graph = torch.fx.Graph()
    graph.output(graph.get_attr(path))
    module = ImportedModule(graph, {"1": torch.nn.Parameter(torch.randn(4, 5))}, {"1": path})
    module.recompile()
    owner = module.get_submodule(path.rpartition(".")[0])
    owner.register_buffer("weight_mask", _mask())
    before = copy.deepcopy(module.state_dict())
    weight = _compact(owner)
    state = module.state_dict()
    assert list(state) == list(before) == ["1", "1_mask"]
    assert torch.equal(state["1"], before["1"] * _mask())
    twin = copy.deepcopy(module)
    with torch.no_grad():
        weight.values.zero_()
    module.load_state_dict(state)
    assert torch.equal(weight.dense(), state["1"])
    assert torch.equal(twin.state_dict()["1"], state["1"])


def test_a_model_with_compact_weights_is_written_back(tmp_path: Path) -> None:
    path = classifier(tmp_path / "net.onnx")
    module = sift_onnx.to_torch(path)
    mask = torch.arange(16 * 8 * 9).reshape(16, 8, 3, 3) % 3 == 0
    compact_parameter(module.get_submodule("body"), "weight", mask)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for source in (module, torch.load(file, weights_only=False)):
        written = sift_onnx.write_back(path, source)
        assert np.array_equal(sift_onnx.masks(written)["body.weight"], mask.numpy())


def test_optimizer_states_follow_the_mask() -> None:
    layer = _layer()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    torch.nn.functional.linear(torch.ones(2, 5), layer.weight).square().sum().backward()
    optimizer.step()
    moments = optimizer.state[layer.weight]["exp_avg"].clone()
    weight = _compact(layer, optimizer)
    states = optimizer.state[weight.values]
    assert torch.equal(states["exp_avg"], moments[_mask()])
    values = weight.dense().detach()
    weight.move(_mask(2))
    assert weight.values.grad is None
    both = _mask() & _mask(2)
    assert torch.equal(weight.dense(), values * both)
    assert torch.equal(weight.scattered(states["exp_avg"]), moments * both)
    _step(layer, optimizer)
    param = dense_parameter(layer, "weight")
    assert compact_weight(layer, "weight") is None
    assert param.shape == states["exp_avg"].shape == (4, 5)
    assert torch.equal(layer.weight_mask, _mask(2))
    assert list(layer.state_dict()) == ["weight", "bias", "weight_mask"]


@pytest.mark.parametrize(("kept", "grown"), [(7, 0), (7, 5), (3, 4), (3, 0), (0, 6), (0, 0), (1, 13)])
def test_an_exchange_is_a_move_to_the_mask_that_it_makes(kept: int, grown: int) -> None:
    chance = torch.Generator().manual_seed(kept + 7 * grown)
    stays = torch.randperm(7, generator=chance) < kept
    inactive = torch.nonzero(~_mask().reshape(-1)).reshape(-1)
    new = inactive[torch.randperm(13, generator=chance)[:grown]].sort().values
    found = []
    for by_mask in (True, False):
        layer = _layer()
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
        weight = _compact(layer, optimizer)
        _step(layer, optimizer)
        if by_mask:
            mask = torch.zeros(20, dtype=torch.bool)
            mask[weight.indices[stays]] = mask[new] = True
            weight.move(mask.reshape(4, 5))
        else:
            weight.exchange(stays, new)
        states = optimizer.state[weight.values]
        moments = [weight.scattered(states[name]) for name in ("exp_avg", "exp_avg_sq")]
        found.append((weight.indices, weight.dense().detach(), *moments, torch.tensor(weight.version)))
    assert all(map(torch.equal, *found))
    assert found[1][0].numel() == kept + grown


def test_a_mask_without_a_weight_can_become_one_with_some() -> None:
    layer = _layer(torch.zeros(4, 5, dtype=torch.bool))
    weight = _compact(layer)
    weight.move(_mask())
    assert torch.equal(weight.values, torch.zeros(7))


def test_weight_decay_goes_by_the_dense_shape() -> None:
    layer = _layer()
    _compact(layer)
    optimizer: Any = make_optimizer(layer, OptimizerSettings(type="sgd", lr=0.1, weight_decay=0.5))
    decays = {id(param): group["weight_decay"] for group in optimizer.param_groups for param in group["params"]}
    assert decays == {id(layer.weight): 0.5, id(layer.bias): 0.0}


def test_mistakes_are_named() -> None:
    layer = _layer()
    with pytest.raises(UsageError, match="Linear has no parameter 'wight'"):
        compact_parameter(layer, "wight", _mask())
    with pytest.raises(UsageError, match=r"the mask of 'weight' has shape \[5, 4\], the parameter \[4, 5\]"):
        compact_parameter(layer, "weight", _mask().T)
    with pytest.raises(SparsityStateError, match="is dense already"):
        dense_parameter(layer, "weight")
    optimizer = torch.optim.Adafactor(layer.parameters())
    torch.nn.functional.linear(torch.ones(2, 5), layer.weight).sum().backward()
    optimizer.step()
    with pytest.raises(UsageError, match=r"the optimizer's state 'row_var' of 'weight' has shape \[4, 1\]"):
        _compact(layer, optimizer)
    weight = _compact(layer)
    with pytest.raises(SparsityStateError, match="is a vector of active values already"):
        compact_parameter(layer, "weight", _mask())
    with pytest.raises(UsageError, match=r"the mask has shape \[5, 4\]"):
        weight.move(_mask().T)
    with pytest.raises(UsageError, match=r"the dense gradient has shape \[7\]"):
        weight.take_dense_gradient(weight.values)
