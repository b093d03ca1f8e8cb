"""Weights that are stored as the vector of their active values.

The ``nn.Parameter`` of a masked weight keeps its place and name in its module; it holds the active values alone, in
row-major order of the dense tensor. Optimizer states, gradients and their communication shrink with it.
``state_dict`` and ``load_state_dict`` have dense tensors, ``<name>`` and ``<name>_mask``, as they had before.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, cast

import torch

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.errors import SparsityStateError
from sift_onnx.training.sparse.parameters.compact_weight import (
    CompactWeight,
    GradientObserver,
    check_whole,
    flat_indices,
    replace_data,
)

__all__ = [
    "CompactWeight",
    "GradientObserver",
    "compact_parameter",
    "compact_weight",
    "compact_weights",
    "dense_parameter",
]

# Attribute of a module: its compact weights by the name of the parameter.
_WEIGHTS = "_compact_weights"


def compact_weight(module: torch.nn.Module, name: str) -> CompactWeight | None:
    """The compact weight that a module has under a parameter's name; None if it is dense.

    Args:
        module: that owns the parameter.
        name: of the parameter, in this module.
    """
    weight: CompactWeight | None = module.__dict__.get(_WEIGHTS, {}).get(name)
    param = module._parameters.get(name)
    if weight is not None and param is not None:
        # FSDP, to_empty and others may have replaced the parameter.
        weight.values = param
    return weight


def compact_weights(module: torch.nn.Module) -> dict[str, CompactWeight]:
    """All compact weights of a module and its submodules, by full parameter name."""
    found: dict[str, CompactWeight] = {}
    for prefix, owner in module.named_modules():
        for name in owner.__dict__.get(_WEIGHTS, {}):
            weight = compact_weight(owner, name)
            assert weight is not None
            found[f"{prefix}.{name}" if prefix else name] = weight
    return found


@torch.no_grad()
def compact_parameter(
    module: torch.nn.Module, name: str, mask: torch.Tensor, optimizer: torch.optim.Optimizer | None = None
) -> CompactWeight:
    """Make a parameter the vector of its active values.

    The parameter remains the same object; weights outside of the mask are lost, and so is its gradient. A mask buffer
    ``<name>_mask`` goes: ``state_dict`` has its content. To be called when no other module owns the parameter, and
    before the model is wrapped in DistributedDataParallel.

    Args:
        module: that owns the parameter.
        name: of the parameter, in this module.
        mask: a bool tensor of the parameter's shape, true where a weight is active.
        optimizer: whose states of the parameter become vectors, and follow the mask; None if there is none yet.

    Raises:
        UsageError: the mask has another shape, FSDP2 shards the parameter, or the optimizer keeps states of other
            shapes, which cannot be stated for a vector.
        SparsityStateError: it is compact already.
    """
    param = module._parameters.get(name)
    if param is None:
        raise UsageError(f"{type(module).__name__} has no parameter {name!r}")
    if compact_weight(module, name) is not None:
        raise SparsityStateError(f"{name!r} is a vector of active values already")
    if mask.shape != param.shape:
        raise UsageError(f"the mask of {name!r} has shape {list(mask.shape)}, the parameter {list(param.shape)}")
    check_whole(param)
    states = {} if optimizer is None else optimizer.state.get(param, {})
    for key, state in states.items():
        if isinstance(state, torch.Tensor) and state.numel() > 1 and state.shape != param.shape:
            raise UsageError(
                f"the optimizer's state {key!r} of {name!r} has shape {list(state.shape)}, not the parameter's; train "
                'with kernels="dense", or another optimizer'
            )
    mask_name = f"{name}_mask"
    weight = CompactWeight(param.shape, flat_indices(mask), param, mask_name in module._buffers)
    states.update(weight.compact_states(states))
    replace_data(param, weight.gathered(param))
    weight.follow(optimizer)
    module._buffers.pop(mask_name, None)
    module.__dict__.setdefault(_WEIGHTS, {})[name] = weight
    _install_hooks(module)
    return weight


@torch.no_grad()
def dense_parameter(
    module: torch.nn.Module, name: str, optimizer: torch.optim.Optimizer | None = None
) -> torch.nn.Parameter:
    """Make a compact parameter a dense one again, with the mask buffer that it had.

    Args:
        module: that owns the parameter.
        name: of the parameter, in this module.
        optimizer: whose states of the parameter become dense; if None, the one that the weight follows.

    Returns:
        The parameter, the same object.

    Raises:
        SparsityStateError: it is not compact.
    """
    weight = compact_weight(module, name)
    if weight is None:
        raise SparsityStateError(f"{name!r} is dense already")
    weight.follow(optimizer)
    states = weight.states()
    states.update(weight.dense_states(states))
    dense, mask = weight.dense(), weight.mask()
    replace_data(weight.values, dense)
    del module.__dict__[_WEIGHTS][name]
    if weight.has_buffer:
        module.register_buffer(f"{name}_mask", mask, persistent=True)
    return weight.values


def _install_hooks(module: torch.nn.Module) -> None:
    if _to_dense not in module._state_dict_hooks.values():
        handle = module.register_state_dict_post_hook(_to_dense)  # type: ignore[no-untyped-call]
        # An imported module renames what the others have left.
        cast(OrderedDict[int, Any], module._state_dict_hooks).move_to_end(handle.id, last=False)
        module.register_load_state_dict_pre_hook(_to_vectors)  # type: ignore[no-untyped-call]


def _to_dense(module: torch.nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for name in module.__dict__[_WEIGHTS]:
        weight = compact_weight(module, name)
        vector = state.get(prefix + name)
        if weight is not None and vector is not None:
            state[prefix + name] = weight.scattered(vector)
            state[f"{prefix}{name}_mask"] = weight.mask()


@torch.no_grad()
def _to_vectors(
    module: torch.nn.Module,
    state: dict[str, Any],
    prefix: str,
    metadata: Any,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    for name in module.__dict__[_WEIGHTS]:
        weight = compact_weight(module, name)
        assert weight is not None
        key, mask_key = prefix + name, f"{prefix}{name}_mask"
        mask, dense = state.pop(mask_key, None), state.get(key)
        if mask is None and strict:
            missing.append(mask_key)
        wrong = [t for t in (mask, dense) if t is not None and tuple(t.shape) != tuple(weight.shape)]
        if wrong:
            errors.append(
                f"size mismatch for {key}: the checkpoint has shape {list(wrong[0].shape)}, the dense weight "
                f"{list(weight.shape)}"
            )
            state[key] = weight.values.detach()
            continue
        if mask is not None:
            weight.move(mask.to(torch.bool))
        if dense is not None:
            state[key] = weight.gathered(dense)
