"""The state of a model and its optimizer in full tensors, also where ranks hold shards of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sift_onnx.training.sparse.distributed import full_tensor, laid_out_like

__all__ = ["full_state", "load_full_model", "load_full_optimizer"]


def full_state(state: Any) -> Any:
    """A copy of nested dictionaries and lists with full tensors on the CPU.

    For sharded tensors this is a collective call: every rank makes it, with a state of the same keys.
    """
    if isinstance(state, Mapping):
        return {key: full_state(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(full_state(value) for value in state)
    return full_tensor(state).cpu() if isinstance(state, torch.Tensor) else state


def load_full_model(module: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """``module.load_state_dict`` of full tensors; each rank takes its shards of them."""
    own = module.state_dict()
    module.load_state_dict({name: laid_out_like(tensor, own.get(name)) for name, tensor in state.items()})


def load_full_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """``optimizer.load_state_dict`` of full tensors; each rank takes its shards of them."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    states = {
        index: {key: laid_out_like(value, params[index]) for key, value in entries.items()}
        for index, entries in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": states})
