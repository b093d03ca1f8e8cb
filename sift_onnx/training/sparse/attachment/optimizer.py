"""What happens around ``optimizer.step``: gradients are masked before it, weights and states after it.

There are no gradient hooks. Under DistributedDataParallel they would see this rank's gradients, and only ``p.grad``
after the backward pass is the average of all ranks'; under FSDP2 they are never called. So gradients stay whole while
they are accumulated, and are finalized once, before the step.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from sift_onnx.training.sparse.attachment.protocol import HookedAlgorithm
from sift_onnx.training.sparse.errors import SparsityStateError
from sift_onnx.training.sparse.parameters.sparse_parameter import SparseParameter

__all__ = ["OptimizerHooks", "update_now"]


class OptimizerHooks:
    """An algorithm (or a group of them) at work on an optimizer."""

    def __init__(self, algorithm: HookedAlgorithm, optimizer: torch.optim.Optimizer) -> None:
        self._algorithm = algorithm
        # The optimizer holds this object by its hooks.
        self._optimizer = weakref.ref(optimizer)
        self._finalized: list[_SeenGradient] | None = None
        self._agreed = False
        self._masks_seen: list[tuple[int, int]] = []
        self._stay_zero: dict[str, tuple[int, ...]] = {}
        optimizer.register_step_pre_hook(lambda *_: self.before_step())
        optimizer.register_step_post_hook(lambda _, args, kwargs: self.after_step((*args, kwargs.get("closure"))))

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer, while it exists."""
        return self._optimizer()

    def _params(self) -> list[SparseParameter]:
        optimizer = self.optimizer
        assert optimizer is not None
        params = list(self._algorithm.get_sparse_params(optimizer))
        if not params:
            raise SparsityStateError(
                "the optimizer has no sparse parameters; call model.apply(sparsity), and give the optimizer the "
                "parameters of that model"
            )
        return params

    def finalize_grads(self) -> None:
        """Let the algorithm see the gradients, then mask them; calling it again changes nothing."""
        with_gradient = [sparse for sparse in self._params() if sparse.has_gradient]
        seen = self._finalized
        if seen is not None and len(seen) == len(with_gradient) and all(gradient.is_unchanged() for gradient in seen):
            return
        self._algorithm.observe_gradients(with_gradient)
        for sparse in with_gradient:
            sparse.mask_gradient()
        self._finalized = [_SeenGradient(sparse) for sparse in with_gradient]

    def before_step(self) -> None:
        """The step's pre-hook."""
        # Gradients that were finalized may have been clipped since. Where they are other tensors by now, a GradScaler
        # has skipped the step they were meant for.
        if self._finalized is None or not all(seen.is_there() for seen in self._finalized):
            self._finalized = None
            self.finalize_grads()
        # Masks that were loaded, or updated by hand.
        self._prune_states(self._params())
        optimizer = self.optimizer
        if optimizer is not None and not self._algorithm.takes_weight_step():
            for group in optimizer.param_groups:
                for param in group["params"]:
                    param.grad = None

    def after_step(self, arguments: Sequence[Any] = ()) -> None:
        """The step's post-hook.

        Args:
            arguments: of the step.
        """
        if any(map(callable, arguments)) and self._computed_inside():
            self._algorithm.forget_gradients()
        self._finalized = None
        optimizer = self.optimizer
        assert optimizer is not None
        if not _was_skipped(optimizer):
            params = self._params()
            for sparse in params:
                sparse.mark_used()
                sparse.prune()
                self._prune_states_of(sparse, sparse.states_in(optimizer))
            self._masks_seen = _versions(params)
            if self._algorithm.autoupdate:
                update_now(self._algorithm, optimizer)
            self._algorithm.densify_if_due()
            for sparse in params:
                # An update that rewinds weights may do so beyond its own parameters.
                sparse.prune_if_changed()
            changed = self._masks_seen != _versions(params)
            self._prune_states(params)
            if changed or not self._agreed:
                self._agreed = self._algorithm.check_ranks()
        self._algorithm.end_step()

    def _computed_inside(self) -> bool:
        """Whether a closure has left gradients that are not finalized: those seen before are of the last step."""
        return self._algorithm.wants_gradients() and any(s.gradient_looks_unmasked() for s in self._params())

    def _prune_states_of(self, sparse: SparseParameter, states: list[torch.Tensor]) -> None:
        # Of zero weights, gradients and states nearly every optimizer makes zero states. Where one was seen to do so,
        # its states are left alone until the mask changes, which saves a pass over each of them in every step.
        identity = tuple(id(state) for state in states)
        if self._stay_zero.get(sparse.name) == identity:
            return
        if sparse.compact is None and sparse.any_outside(sparse.mask, states):
            sparse.zero_outside(sparse.mask, states)
        elif states:
            self._stay_zero[sparse.name] = identity

    def _prune_states(self, params: list[SparseParameter]) -> None:
        """Prune the optimizer's states, if masks have changed since they were."""
        optimizer = self.optimizer
        versions = _versions(params)
        if optimizer is not None and versions != self._masks_seen:
            for sparse in params:
                sparse.prune_states(optimizer)
            self._masks_seen = versions
            self._stay_zero = {}


def _versions(params: list[SparseParameter]) -> list[tuple[int, int]]:
    return [sparse.mask_version for sparse in params]


class _SeenGradient:
    """A gradient as it was when it was masked."""

    def __init__(self, sparse: SparseParameter) -> None:
        grad = sparse.param.grad
        assert grad is not None
        self._sparse = sparse
        # Not its id: the next gradient may well lie where this one was.
        self._grad = weakref.ref(grad)
        self._version = grad._version

    def is_there(self) -> bool:
        """Whether it is still the parameter's gradient."""
        grad = self._grad()
        return grad is not None and grad is self._sparse.param.grad

    def is_unchanged(self) -> bool:
        """Whether, besides, it has not been written to."""
        grad = self._grad()
        return grad is not None and self.is_there() and grad._version == self._version


def update_now(algorithm: HookedAlgorithm, optimizer: torch.optim.Optimizer) -> None:
    """Call an algorithm's ``update``, which a user may have written with or without an argument."""
    try:
        inspect.signature(algorithm.update).bind(optimizer)
    except TypeError:
        algorithm.update()
    else:
        algorithm.update(optimizer)


def _was_skipped(optimizer: torch.optim.Optimizer) -> bool:
    # GradScaler does not call the step of most optimizers when it finds an infinity. Fused ones are called.
    found_inf: Any = getattr(optimizer, "found_inf", None)
    return found_inf is not None and float(found_inf) != 0
