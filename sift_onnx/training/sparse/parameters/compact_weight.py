"""A weight that is stored as the vector of its active values, and what happens to it when its mask moves."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.distributed import is_parallel, is_sharded

__all__ = ["CompactWeight", "GradientObserver", "check_whole", "flat_indices", "replace_data"]


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
        has_buffer: whether the module had the mask as a buffer, which a dense parameter gets back.
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
        self.has_buffer = has_buffer
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
        check_whole(vector)
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
        device = self.values.device
        old, new = self._indices_on(device), flat_indices(mask).to(device)
        if torch.equal(old, new):
            return
        stays = mask.reshape(-1).to(device)[old]
        self._replace(new, _Move(stays, self.mask().reshape(-1)[new]))

    @torch.no_grad()
    def exchange(self, stays: torch.Tensor, grown: torch.Tensor) -> None:
        """Replace the mask, as :meth:`move` does, without a tensor of :attr:`shape`.

        Args:
            stays: bool, one for each active weight: whether it stays active.
            grown: flat indices of further weights, int64, ascending.

        Raises:
            UsageError: the length changes while ranks train together.
        """
        if not grown.numel() and bool(stays.all()):
            return
        left = self._indices_on(self.values.device)[stays]
        places = torch.searchsorted(left, grown) + torch.arange(grown.numel(), device=grown.device)
        was_active = torch.ones(left.numel() + grown.numel(), dtype=torch.bool, device=left.device)
        was_active[places] = False
        new = left.new_empty(was_active.numel())
        new[places] = grown
        new[was_active] = left
        self._replace(new, _Move(stays, was_active))

    def _replace(self, new: torch.Tensor, moved: _Move) -> None:
        """Take other indices, and what ``moved`` makes of the values and their states."""
        check_whole(self.values)
        if new.numel() != self.nnz and is_parallel() and not self.ranks_follow:
            raise UsageError(
                f"the number of active weights changes from {self.nnz} to {new.numel()}, which "
                'DistributedDataParallel cannot follow; train with kernels="dense"'
            )
        states = self.states()
        length = self.values.shape
        for key, state in states.items():
            if _has_shape(state, length):
                states[key] = moved(state)
        replace_data(self.values, moved(self.values))
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

    def states(self) -> dict[str, Any]:
        """The optimizer's states of the parameter, those that :meth:`move` moves; empty without an optimizer."""
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

    def __init__(self, stays: torch.Tensor, was_active: torch.Tensor) -> None:
        """Both sets are ascending, so that what they share comes in one order.

        Args:
            stays: bool, for each old index whether it is a new one too.
            was_active: bool, for each new index whether it is an old one too.
        """
        self._size = was_active.numel()
        self._from, self._to = (torch.nonzero(flags).reshape(-1) for flags in (stays, was_active))

    def __call__(self, vector: torch.Tensor) -> torch.Tensor:
        return vector.new_zeros(self._size).index_copy_(0, self._to, vector.detach()[self._from])


def flat_indices(mask: torch.Tensor) -> torch.Tensor:
    """The indices of active weights in the flat tensor, int64, ascending."""
    return torch.nonzero(mask.detach().reshape(-1)).reshape(-1)


def replace_data(param: torch.nn.Parameter, data: torch.Tensor) -> None:
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


def check_whole(tensor: torch.Tensor) -> None:
    """Refuse a tensor of which ranks hold shards.

    Raises:
        UsageError: FSDP2 shards it.
    """
    if is_sharded(tensor):
        raise UsageError('FSDP2 cannot shard a weight that is stored as its active values; train with kernels="dense"')


def _has_shape(value: Any, shape: torch.Size) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == shape
