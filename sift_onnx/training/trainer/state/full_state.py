"""The state of a model and its optimizer in full tensors, also where ranks hold shards of them.

Weights that are stored as their active values are dense tensors here, and so are their optimizer states: a checkpoint
does not tell in which form a run had them, and either form can go on from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sift_onnx.training.sparse.distributed import full_tensor, laid_out_like
from sift_onnx.training.sparse.parameters.compact import CompactWeight, compact_weights

__all__ = ["full_optimizer_state", "full_state", "load_full_model", "load_full_optimizer"]


def full_state(state: Any) -> Any:
    """A copy of nested dictionaries and lists with full tensors on the CPU.

    For sharded tensors this is a collective call: every rank makes it, with a state of the same keys.
    """
    if isinstance(state, Mapping):
        return {key: full_state(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(full_state(value) for value in state)
    return full_tensor(state).cpu() if isinstance(state, torch.Tensor) else state


def full_optimizer_state(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, Any]:
    """The :func:`full_state` of the optimizer of a module."""
    state, weights = optimizer.state_dict(), _compact_by_index(optimizer, module)
    states = {i: weights[i].dense_states(own) if i in weights else own for i, own in state["state"].items()}
    full: dict[str, Any] = full_state({**state, "state": states})
    return full


def load_full_model(module: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """``module.load_state_dict`` of full tensors; each rank takes its shards of them."""
    own = module.state_dict()
    module.load_state_dict({name: laid_out_like(tensor, own.get(name)) for name, tensor in state.items()})


def load_full_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any], module: nn.Module) -> None:
    """``optimizer.load_state_dict`` of full tensors, after :func:`load_full_model`; each rank takes its shards."""
    params, weights = _params(optimizer), _compact_by_index(optimizer, module)
    states = {
        index: weights[index].compact_states(entries)
        if index in weights
        else {key: laid_out_like(value, params[index]) for key, value in entries.items()}
        for index, entries in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": states})


def _params(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _compact_by_index(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[int, CompactWeight]:
    """Compact weights by their parameter's index in the optimizer's state."""
    weights = {id(weight.values): weight for weight in compact_weights(module).values()}
    return {i: weights[id(param)] for i, param in enumerate(_params(optimizer)) if id(param) in weights}
