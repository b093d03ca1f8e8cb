"""Weights that are stored as the vector of their active values.

The ``nn.Parameter`` of a masked weight keeps its place and name in its module; it holds the active values alone, in
row-major order of the dense tensor. Optimizer states, gradients and their communication shrink with it.
``state_dict`` and ``load_state_dict`` have dense tensors, ``<name>`` and ``<name>_mask``, as they had before.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol, cast

import torch

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.distributed import is_parallel, is_sharded
from sift_onnx.training.sparse.errors import SparsityStateError

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


class GradientObserver(Protocol):
    """What asks for dense gradients of a compact weight."""

    def wants(self) -> bool:
        """Whether the dense gradient is needed in this backward pass; asked once in each."""

    def take(self, weight: CompactWeight, grad: torch.Tensor) -> None:
        """Keep what is needed of a dense gradient."""


class CompactWeight:
    """A masked weight whose parameter is the vector of its active values.

    An active value may be zero: it stays active.

    Attributes:
        shape: of the dense tensor.
        indices: of the active weights in the flat dense tensor, int64, ascending.
        version: goes up by one whenever the mask moves.
        values: the parameter.
        observer: of dense gradients; None if no algorithm needs them.
        ranks_follow: whether what averages gradients over ranks follows a mask that changes the number of weights, as
            the trainer does, which wraps the model in DistributedDataParallel again.
    """

    def __init__(self, shape: torch.Size, indices: torch.Tensor, values: torch.nn.Parameter, has_buffer: bool) -> None:
        self.shape = shape
        self.indices = indices
        self.version = 0
        self.values = values
        self.observer: GradientObserver | None = None
        self.ranks_follow = False
        self._has_buffer = has_buffer
        self._optimizer: weakref.ref[torch.optim.Optimizer] | None = None

    @property
    def numel(self) -> int:
        """Number of elements of the dense tensor."""
        return self.shape.numel()

    @property
    def nnz(self) -> int:
        """Number of active weights."""
        return self.indices.numel()

    def dense(self) -> torch.Tensor:
        """The dense tensor, a new one; gradients go through it to :attr:`values`."""
        return self.scattered(self.values)

    def mask(self) -> torch.Tensor:
        """True where a weight is active; a new tensor, which writes to do not change."""
        return self.scattered(torch.ones(self.nnz, dtype=torch.bool, device=self.values.device))

    def scattered(self, vector: torch.Tensor) -> torch.Tensor:
        """A dense tensor of one element for each active weight, zero elsewhere.

        Raises:
            UsageError: FSDP2 shards it.
        """
        _check_whole(vector)
        flat = vector.new_zeros(self.numel)
        return flat.index_copy(0, self._indices_on(vector.device), vector).reshape(self.shape)

    def gathered(self, dense: torch.Tensor) -> torch.Tensor:
        """The elements of a tensor of :attr:`shape` that belong to active weights, a new vector."""
        return dense.detach().reshape(-1)[self._indices_on(dense.device)]

    def dense_states(self, states: Mapping[str, Any]) -> dict[str, Any]:
        """An optimizer's states of this parameter, as they are of a dense one."""
        own = self.values.shape
        return {k: self.scattered(v.detach()) if _has_shape(v, own) else v for k, v in states.items()}

    def compact_states(self, states: Mapping[str, Any]) -> dict[str, Any]:
        """An optimizer's states of a dense parameter, as they are of this one."""
        return {k: self.gathered(v) if _has_shape(v, self.shape) else v for k, v in states.items()}

    def follow(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Move the parameter's states in ``optimizer`` along with the mask from now on."""
        if optimizer is not None and (self._optimizer is None or self._optimizer() is not optimizer):
            self._optimizer = weakref.ref(optimizer)

    @torch.no_grad()
    def move(self, mask: torch.Tensor) -> None:
        """Replace the mask.

        Weights and optimizer states that stay active keep their values, others start at zero. The parameter remains
        the same object, also where its length changes; it has no gradient afterwards.

        Args:
            mask: a bool tensor of :attr:`shape`.

        Raises:
            UsageError: its shape is another one, or the length changes while ranks train together.
        """
        if mask.shape != self.shape:
            raise UsageError(f"the mask has shape {list(mask.shape)}, the weight {list(self.shape)}")
        old, new = self.indices, _flat_indices(mask)
        if torch.equal(old.to(new.device), new):
            return
        _check_whole(self.values)
        if new.numel() != old.numel() and is_parallel() and not self.ranks_follow:
            raise UsageError(
                f"the number of active weights changes from {old.numel()} to {new.numel()}, which "
                'DistributedDataParallel cannot follow; train with kernels="dense"'
            )
        device = self.values.device
        moved = _Move(old.to(device), new.to(device))
        states = self._states()
        length = self.values.shape
        for key, state in states.items():
            if _has_shape(state, length):
                states[key] = moved(state)
        _replace(self.values, moved(self.values))
        self.indices = new
        self.version += 1

    def wants_dense_gradient(self) -> bool:
        """Whether this backward pass is to call :meth:`take_dense_gradient`; to be asked once in each."""
        return self.observer is not None and self.observer.wants()

    def take_dense_gradient(self, grad: torch.Tensor) -> None:
        """Take the gradient of the dense weight, of active and inactive elements; only what is needed is kept.

        Raises:
            UsageError: its shape is another one.
        """
        if grad.shape != self.shape:
            raise UsageError(f"the dense gradient has shape {list(grad.shape)}, the weight {list(self.shape)}")
        if self.observer is not None:
            self.observer.take(self, grad.detach())

    def _states(self) -> dict[str, Any]:
        optimizer = None if self._optimizer is None else self._optimizer()
        return {} if optimizer is None else optimizer.state.get(self.values, {})

    def _indices_on(self, device: torch.device) -> torch.Tensor:
        if self.indices.device != device:
            self.indices = self.indices.to(device)
        return self.indices

    def __getstate__(self) -> dict[str, Any]:
        # A copy belongs to no algorithm and no optimizer.
        return {**self.__dict__, "observer": None, "_optimizer": None}

    def __repr__(self) -> str:
        return f"CompactWeight({list(self.shape)}, {self.nnz} active)"


class _Move:
    """How vectors of one set of indices become vectors of another."""

    def __init__(self, old: torch.Tensor, new: torch.Tensor) -> None:
        places = torch.searchsorted(old, new).clamp_(max=max(old.numel() - 1, 0))
        kept = old[places] == new if old.numel() else torch.zeros_like(new, dtype=torch.bool)
        self._size = new.numel()
        self._to = torch.nonzero(kept).reshape(-1)
        self._from = places[self._to]

    def __call__(self, vector: torch.Tensor) -> torch.Tensor:
        return vector.new_zeros(self._size).index_copy_(0, self._to, vector.detach()[self._from])


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
    _check_whole(param)
    states = {} if optimizer is None else optimizer.state.get(param, {})
    for key, state in states.items():
        if isinstance(state, torch.Tensor) and state.numel() > 1 and state.shape != param.shape:
            raise UsageError(
                f"the optimizer's state {key!r} of {name!r} has shape {list(state.shape)}, not the parameter's; train "
                'with kernels="dense", or another optimizer'
            )
    mask_name = f"{name}_mask"
    weight = CompactWeight(param.shape, _flat_indices(mask), param, mask_name in module._buffers)
    states.update(weight.compact_states(states))
    _replace(param, weight.gathered(param))
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
    states = weight._states()
    states.update(weight.dense_states(states))
    dense, mask = weight.dense(), weight.mask()
    _replace(weight.values, dense)
    del module.__dict__[_WEIGHTS][name]
    if weight._has_buffer:
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


def _flat_indices(mask: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(mask.detach().reshape(-1)).reshape(-1)


def _replace(param: torch.nn.Parameter, data: torch.Tensor) -> None:
    """Give a parameter other data, of another length perhaps; it stays the same object and has no gradient then."""
    param.grad = None
    if data.shape == param.shape:
        param.detach().copy_(data)
        return
    # While a graph of an earlier step is alive, torch keeps its accumulator, which takes gradients of the old shape
    # only. A change of the type makes torch forget it.
    other = torch.float64 if data.dtype != torch.float64 else torch.float32
    param.data = data.new_empty(0, dtype=other)
    param.data = data
    torch.autograd.graph.increment_version(param)


def _has_shape(value: Any, shape: torch.Size) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == shape


def _check_whole(tensor: torch.Tensor) -> None:
    if is_sharded(tensor):
        raise UsageError('FSDP2 cannot shard a weight that is stored as its active values; train with kernels="dense"')
