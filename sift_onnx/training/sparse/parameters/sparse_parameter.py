"""A parameter and its mask, where they live: in the module that owns them."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable
from typing import Any, NoReturn

import torch

from sift_onnx.errors import UsageError
from sift_onnx.sparsity.patterns.weight_matrix import WeightMatrix
from sift_onnx.training.sparse.distributed import full_tensor, is_sharded, local_shard, to_local
from sift_onnx.training.sparse.errors import SparsityStateError, refuse_pickling
from sift_onnx.training.sparse.host_tensors import copied, zero_outside
from sift_onnx.training.sparse.parameters.compact import CompactWeight, compact_weight
from sift_onnx.training.sparse.parameters.dense_gradient import DenseGradient, GrowthRule, KeptGradient
from sift_onnx.training.sparse.parameters.of_module import axes_of
from sift_onnx.training.sparse.schedules.hyper_parameters import HyperParameterSchedule

__all__ = ["SparseParameter"]

# Elements that are looked at where a few are enough.
_SAMPLE = 1 << 13


class SparseParameter:
    """What an algorithm knows of a parameter, and the only place that knows how it is stored.

    Algorithms and hooks ask for values, gradients and optimizer states here. The mask is a persistent bool buffer
    ``<name>_mask`` beside the parameter, of its shape; true where a weight is active. It is looked up by name each
    time, so that FSDP, ``to_empty`` and others may replace parameters.

    A parameter that is a :class:`CompactWeight` has no mask buffer, and nothing outside of its mask; masks, values and
    gradients that are asked for are dense tensors all the same, made when they are asked for.

    Attributes:
        name: of the parameter, in the module that the algorithm was applied to.
        param_name: of the parameter, in the module that owns it.
        mask_name: of its mask, in the module that owns it.
        schedule: of its sparsity.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        name: str,
        schedule: HyperParameterSchedule,
        feature_axes: tuple[int, int] | None = None,
    ) -> None:
        # No cycle: the module holds the algorithm, by its hooks, and the algorithm this.
        self._module = weakref.ref(module)
        self.name = name
        self.param_name = name.rpartition(".")[2]
        self.mask_name = f"{self.param_name}_mask"
        self.schedule = schedule
        self._known_axes = feature_axes
        self._initialized = False
        self._used = False
        self._seen: tuple[int, ...] | None = None
        self._pruned: weakref.ref[torch.Tensor] | None = None
        self._nnz: tuple[int, int, int] | None = None
        placeholder = torch.ones(self.param.shape, dtype=torch.bool, device=to_local(self.param).device)
        module.register_buffer(self.mask_name, placeholder, persistent=True)

    @property
    def module(self) -> torch.nn.Module:
        """The module that owns the parameter.

        Raises:
            SparsityStateError: it is gone.
        """
        module = self._module()
        if module is None:
            raise SparsityStateError(f"the module of {self.name!r} no longer exists")
        return module

    @property
    def param(self) -> torch.nn.Parameter:
        """The parameter."""
        param = self.module._parameters[self.param_name]
        assert param is not None
        return param

    @property
    def data(self) -> torch.nn.Parameter:
        """The parameter, by the name that cstorch gives it."""
        return self.param

    @property
    def compact(self) -> CompactWeight | None:
        """The parameter as a vector of active values; None if it is dense."""
        return compact_weight(self.module, self.param_name)

    @property
    def shape(self) -> torch.Size:
        """Shape of the dense tensor."""
        return self.param.shape if (compact := self.compact) is None else compact.shape

    @property
    def numel(self) -> int:
        """Number of weights, active or not."""
        return self.shape.numel()

    @property
    def mask(self) -> torch.Tensor:
        """The mask; setting it prunes the parameter. A compact parameter's is a new tensor each time."""
        if (compact := self.compact) is not None:
            return compact.mask()
        mask = self.module._buffers[self.mask_name]
        assert mask is not None
        return mask

    @mask.setter
    def mask(self, mask: torch.Tensor) -> None:
        self.update(mask)

    @property
    def mask_version(self) -> tuple[int, int]:
        """Something that differs once the mask has changed."""
        if (compact := self.compact) is not None:
            return id(compact), compact.version
        return id(self.mask), self.mask._version

    @property
    def initialized(self) -> bool:
        """Whether the mask has been drawn or loaded."""
        return self._initialized

    @property
    def nnz(self) -> int:
        """Number of active weights."""
        if (compact := self.compact) is not None:
            return compact.nnz
        mask = self.mask
        if self._nnz is None or self._nnz[:2] != (id(mask), mask._version):
            self._nnz = (id(mask), mask._version, int(torch.count_nonzero(mask)))
        return self._nnz[2]

    @property
    def matrix(self) -> WeightMatrix:
        """The parameter as the matrices that patterns are stated on.

        Raises:
            ValueError: the parameter is a vector.
        """
        return WeightMatrix(tuple(self.shape), *self.feature_axes)

    @property
    def feature_axes(self) -> tuple[int, int]:
        """Dimensions of output and input features: 0 and 1, as in torch's own layers, unless the model says otherwise.

        The parameter says so by an attribute ``feature_axes = (out, in)``, the module as :func:`known_axes` reads it.
        """
        return axes_of(self.param, self._known_axes)

    def full_values(self) -> torch.Tensor:
        """The parameter as a dense tensor, even if it is sharded; every rank calls this."""
        return full_tensor(self.param) if (compact := self.compact) is None else compact.dense().detach()

    @property
    def has_gradient(self) -> bool:
        """Whether there is a gradient."""
        return self.param.grad is not None

    def full_gradient(self) -> torch.Tensor | KeptGradient | None:
        """A copy of the gradient, even if it is sharded; every rank calls this.

        Returns:
            The tensor; of a compact parameter what was kept of it, None if nothing was.
        """
        assert self.param.grad is not None
        if (compact := self.compact) is None:
            return copied(full_tensor(self.param.grad))
        return compact.observer.seal(compact) if isinstance(compact.observer, DenseGradient) else None

    def connect(self, rule: GrowthRule, optimizer: torch.optim.Optimizer | None) -> None:
        """Let a compact parameter know its algorithm and its optimizer; called at the beginning of a forward pass."""
        compact = self.compact
        if compact is None:
            return
        compact.follow(optimizer)
        if not isinstance(compact.observer, DenseGradient):
            compact.observer = DenseGradient(rule, self.name)
        grad = compact.values.grad
        if grad is None or not bool(grad.any()):
            compact.observer.begin()

    def forget_gradient(self) -> None:
        """Drop what a compact parameter has kept of its dense gradient."""
        compact = self.compact
        if compact is not None and isinstance(compact.observer, DenseGradient):
            compact.observer.forget()

    def mask_gradient(self) -> None:
        """Zero the gradient of inactive weights.

        Raises:
            UsageError: the gradient is a sparse tensor.
        """
        grad = self.param.grad
        assert grad is not None
        if grad.is_sparse:
            raise UsageError(f"the gradient of {self.name!r} is a sparse tensor; use Embedding(sparse=False)")
        if self.compact is None:
            self.zero_outside(self.mask, [grad])

    def states_in(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """The optimizer's state tensors that have one element for each weight, except those with ``requires_dense``.

        No table of optimizers is needed: these are the states of the parameter's shape.
        """
        param = self.param
        states = [state for state in optimizer.state.get(param, {}).values() if isinstance(state, torch.Tensor)]
        return [state for state in states if state.shape == param.shape and not getattr(state, "requires_dense", False)]

    def prune_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Zero the inactive elements of :meth:`states_in` an optimizer."""
        if self.compact is None:
            self.zero_outside(self.mask, self.states_in(optimizer))

    def reset_outside(self, mask: torch.Tensor, optimizer: torch.optim.Optimizer | None) -> None:
        """Zero the parameter and its optimizer states outside of a mask that need not be its own."""
        states = [] if optimizer is None else self.states_in(optimizer)
        self.zero_outside(mask, [self.param, *states])

    def place(self, mask: torch.Tensor) -> None:
        """Make ``mask`` the first mask, and prune the parameter."""
        self.mask.copy_(mask)
        self._initialized = True
        self.prune()

    def update(self, mask: torch.Tensor) -> None:
        """Replace the mask, and prune the parameter.

        Raises:
            SparsityStateError: there is no first mask yet, or the module has not run with it.
        """
        self._check_running()
        self._set_mask(mask)
        self.prune()

    def exchange(self, stays: torch.Tensor, grown: torch.Tensor) -> None:
        """Replace the mask of a compact parameter by what changes in it, see :meth:`CompactWeight.exchange`.

        Raises:
            SparsityStateError: as :meth:`update` does.
        """
        self._check_running()
        compact = self.compact
        assert compact is not None
        compact.exchange(stays, grown)

    def _check_running(self) -> None:
        if not self._initialized:
            raise SparsityStateError(f"the mask of {self.name!r} is updated before it was initialized")
        if not self._used:
            raise SparsityStateError(f"the mask of {self.name!r} is updated before it was used in a forward pass")

    def densify(self) -> None:
        """Make all weights active, without a look at their values."""
        self._set_mask(torch.ones_like(self.mask))

    def _set_mask(self, mask: torch.Tensor) -> None:
        if (compact := self.compact) is not None:
            compact.move(mask)
        else:
            self.mask.copy_(mask)

    def mark_used(self) -> None:
        """Note that the module has run with this mask."""
        self._used = True

    def prune(self) -> None:
        """Zero the inactive elements of the parameter."""
        if self.compact is not None:
            return
        param = self.param
        self.zero_outside(self.mask, [param])
        self._pruned, self._seen = weakref.ref(param), self._fingerprint(param)

    def prune_if_changed(self) -> None:
        """Prune the parameter, unless it is the tensor that was pruned last, unchanged.

        A write that bypasses autograd, by ``.data``, is not noticed; the next optimizer step prunes it.
        """
        if self.compact is not None:
            return
        shards = self._shards()
        if shards is None:
            if self._fingerprint(self.param) != self._seen:
                self.prune()
        elif self._fingerprint(shards) != self._seen:
            # What is gathered goes again; the shards are pruned by the optimizer's next step. FSDP2 then resizes the
            # storage, which torch forbids once numpy has seen it.
            self.param.detach().masked_fill_(~self.mask, 0)

    def zero_outside(self, mask: torch.Tensor, tensors: Iterable[torch.Tensor]) -> None:
        """Zero ``tensors`` of the parameter's shape outside of ``mask``; NaN and infinities become zero as well."""
        if (compact := self.compact) is not None:
            mask = compact.gathered(mask)
        part = local_shard(mask, self.param)
        for tensor in tensors:
            zero_outside(part, to_local(tensor))

    def any_outside(self, mask: torch.Tensor, tensors: Iterable[torch.Tensor]) -> bool:
        """Whether this rank's shard of any of ``tensors``, of the parameter's shape, has a non-zero outside."""
        if self.compact is not None:
            return False
        part = ~local_shard(mask, self.param)
        return any(bool(to_local(tensor)[part].any()) for tensor in tensors)

    def gradient_looks_unmasked(self) -> bool:
        """Whether a sample of this rank's shard of the gradient has a non-zero outside of the mask."""
        if self.param.grad is None:
            return False
        if (compact := self.compact) is not None:
            return isinstance(compact.observer, DenseGradient) and compact.observer.is_open
        values, mask = to_local(self.param.grad).reshape(-1), local_shard(self.mask, self.param).reshape(-1)
        step = values.numel() // _SAMPLE + 1
        return bool(values[::step].masked_fill(mask[::step], 0).any())

    def _fingerprint(self, param: torch.Tensor) -> tuple[int, ...]:
        # In-place changes increment a tensor's version; those of a shard do not increment the DTensor's. A
        # forward pass that writes to weights without need breaks a later backward pass (two forwards, one backward).
        mask = self.mask
        return id(param), param._version, to_local(param)._version, id(mask), mask._version

    def _shards(self) -> torch.Tensor | None:
        """The DTensor that was pruned last, if the parameter is what FSDP2 has gathered of it for the moment."""
        pruned = self._pruned() if self._pruned is not None else None
        return pruned if pruned is not None and is_sharded(pruned) and not is_sharded(self.param) else None

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseParameter:
        twin = SparseParameter.__new__(SparseParameter)
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def __reduce__(self) -> NoReturn:
        refuse_pickling("a sparsity algorithm that is applied to a model")

    def __repr__(self) -> str:
        return f"SparseParameter({self.name})"
