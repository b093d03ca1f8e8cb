"""A model and its optimizer as they were at some step, to go back to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["Snapshot"]


class Snapshot:
    """Copies of parameters, buffers and optimizer states; masks are left out."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], states: Mapping[int, Mapping[str, Any]]) -> None:
        self._tensors = dict(tensors)
        self._states = {int(index): dict(state) for index, state in states.items()}

    @classmethod
    def of(cls, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> Snapshot:
        """A snapshot.

        Args:
            module: the model.
            optimizer: of the model; None if it has no states yet.
        """
        without = {f"{name}_mask" for name, _ in module.named_parameters()}
        tensors = {name: t.detach().clone() for name, t in _tensors(module).items() if name not in without}
        params = [] if optimizer is None else _params(optimizer)
        states = {} if optimizer is None else {i: _copied(optimizer.state.get(p, {})) for i, p in enumerate(params)}
        return cls(tensors, states)

    @torch.no_grad()
    def restore(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Write all of it back; optimizer states that did not exist then are deleted."""
        present = _tensors(module)
        for name, tensor in self._tensors.items():
            present[name].copy_(tensor)
        for index, param in enumerate([] if optimizer is None else _params(optimizer)):
            assert optimizer is not None
            state = _copied(self._states.get(index, {}))
            if state:
                optimizer.state[param] = state
            else:
                optimizer.state.pop(param, None)

    def state_dict(self) -> dict[str, Any]:
        """All of it, in tensors and numbers."""
        return {"tensors": self._tensors, "states": self._states}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Snapshot:
        """The snapshot of a :meth:`state_dict`."""
        return cls(state["tensors"], state["states"])


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _params(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in state.items()}
