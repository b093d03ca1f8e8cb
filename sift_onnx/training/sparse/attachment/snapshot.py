"""A model and its optimizer as they were at some step, to go back to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sift_onnx.training.sparse.distributed import full_tensor, is_sharded, laid_out_like, local_shard, to_local
from sift_onnx.training.sparse.parameters.compact import CompactWeight, compact_weights

__all__ = ["Snapshot"]


class Snapshot:
    """Copies of parameters, buffers and optimizer states; masks are left out.

    Of compact parameters it holds dense tensors, which fit any mask.

    Of sharded tensors each rank has a copy of its shard, or of the full tensor if the snapshot was loaded.
    """

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
        compact = compact_weights(module)
        tensors = {
            name: compact[name].dense().detach() if name in compact else t.detach().clone()
            for name, t in _tensors(module).items()
            if name not in without
        }
        states = {}
        if optimizer is not None:
            by_param = _by_param(compact)
            for index, (param, _) in enumerate(_params(optimizer)):
                state = _copied(optimizer.state.get(param, {}))
                states[index] = by_param[param].dense_states(state) if param in by_param else state
        return cls(tensors, states)

    @torch.no_grad()
    def restore(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Write all of it back; optimizer states that did not exist then are deleted."""
        present, compact = _tensors(module), compact_weights(module)
        by_param = _by_param(compact)
        for name, tensor in self._tensors.items():
            if name in compact:
                tensor = compact[name].gathered(tensor)
            part = to_local(tensor) if is_sharded(tensor) else local_shard(tensor, present[name])
            to_local(present[name]).copy_(part)
        for index, (param, group) in enumerate([] if optimizer is None else _params(optimizer)):
            assert optimizer is not None
            state = {
                key: laid_out_like(_placed(key, value, param, group), param)
                for key, value in _copied(self._states.get(index, {})).items()
            }
            if param in by_param:
                state = by_param[param].compact_states(state)
            if state:
                optimizer.state[param] = state
            else:
                optimizer.state.pop(param, None)

    def state_dict(self) -> dict[str, Any]:
        """All of it, in full tensors and numbers; where tensors are sharded, all ranks call it."""
        tensors = {name: full_tensor(tensor) for name, tensor in self._tensors.items()}
        states = {index: {key: _full(value) for key, value in state.items()} for index, state in self._states.items()}
        return {"tensors": tensors, "states": states}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Snapshot:
        """The snapshot of a :meth:`state_dict`."""
        return cls(state["tensors"], state["states"])


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _params(optimizer: torch.optim.Optimizer) -> list[tuple[torch.Tensor, dict[str, Any]]]:
    """Parameters, each with the settings of its group."""
    return [(param, group) for group in optimizer.param_groups for param in group["params"]]


def _by_param(weights: Mapping[str, CompactWeight]) -> dict[torch.Tensor, CompactWeight]:
    return {weight.values: weight for weight in weights.values()}


def _placed(key: str, value: Any, param: torch.Tensor, group: Mapping[str, Any]) -> Any:
    """A state on its parameter's device; a snapshot that was loaded is on the host.

    Counts of steps stay there unless the optimizer needs them on the device, as where torch loads its states.
    """
    if not isinstance(value, torch.Tensor):
        return value
    stays = key == "step" and not (group.get("capturable") or group.get("fused"))
    return value if stays else value.to(param.device)


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in state.items()}


def _full(value: Any) -> Any:
    return full_tensor(value) if isinstance(value, torch.Tensor) else value
