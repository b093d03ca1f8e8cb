"""Sparsity whose masks change while the model trains."""

from __future__ import annotations

import os
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.algorithms.base import SparsityAlgorithm
from sift_onnx.training.sparse.distributed import broadcast_masks, is_parallel, is_rank_0
from sift_onnx.training.sparse.errors import SparsityStateError
from sift_onnx.training.sparse.parameters.dense_gradient import KeptGradient
from sift_onnx.training.sparse.parameters.sparse_parameter import SparseParameter
from sift_onnx.training.sparse.schedules.share import Share
from sift_onnx.training.sparse.schedules.update_schedules import UpdateScheduleLike, make_update_schedule

__all__ = ["DynamicSparsityAlgorithm", "Exchange"]

Exchange = tuple[torch.Tensor, torch.Tensor]


class DynamicSparsityAlgorithm(SparsityAlgorithm):
    """The base of algorithms that update masks by a schedule; subclasses implement :meth:`update_mask`.

    After each step of the optimizer the step counter goes up by one; if the update schedule then names the step, every
    parameter that had a gradient gets a new mask, at the sparsity its schedule has for that step. Step 0
    updates nothing; if the update schedule does not name it, training starts dense.

    On other steps masks cost nothing but their application.
    """

    #: Whether weights that an update drops and grows lose their values; :meth:`survivors` then says which ones do not.
    resets_regrown: bool = False
    #: Whether updates need gradients of inactive weights, too; :meth:`dense_gradient` then has them.
    needs_dense_gradients: ClassVar[bool] = False

    def __init__(
        self,
        sparsity: Any = None,
        update: UpdateScheduleLike = None,
        *,
        weight_step: Literal["take", "skip"] = "take",
        start_sparse: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """Settings.

        Args:
            sparsity: see :class:`SparsityAlgorithm`.
            update: when masks are updated: None for every step, ``{"freq": f, "start": 0, "stop": None}``,
                ``{"steps": [...]}``, or a function of the step.
            weight_step: whether the optimizer takes its step on update steps, as in cstorch and cbsparse, or leaves it
                out, for all of its parameters, as in google-research/rigl.
            start_sparse: whether training starts sparse; None leaves it to step 0 of ``update``.
            kwargs: see :class:`SparsityAlgorithm`.

        Raises:
            UsageError: a setting is out of its range.
        """
        super().__init__(sparsity=sparsity, **kwargs)
        if weight_step not in ("take", "skip"):
            raise UsageError(f"weight_step {weight_step!r} is unknown; choose 'take' or 'skip'")
        self.update_schedule = make_update_schedule(update, strict=self.compat == "cbsparse")
        self.weight_step = weight_step
        self._starts_sparse = self.update_schedule.starts_sparse if start_sparse is None else start_sparse
        self._gradients_seen: set[str] | None = None
        self._dense_gradients: dict[str, torch.Tensor | KeptGradient] = {}
        self._current: SparseParameter | None = None

    @property
    def starts_sparse(self) -> bool:
        return self._starts_sparse

    @property
    def is_update_step(self) -> bool:
        """Whether the masks are updated at the present step."""
        return not self.is_dense and self.update_schedule(self.step)

    def sparsify_parameter(self, module: torch.nn.Module, name: str, param: torch.Tensor) -> None:
        super().sparsify_parameter(module, name, param)
        if name in self.sparse_params and name not in self._given:
            self._check_range(self.sparse_params[name])

    def on_sparsified(self, module: torch.nn.Module) -> None:
        super().on_sparsified(module)
        if not self.starts_sparse and self.update_schedule.start > 0 and self.sparse_params and not self._given:
            warnings.warn(
                f"{type(self).__name__} trains dense until its first update, step {self.update_schedule.start}; pass "
                "start_sparse=True for masks from the start",
                stacklevel=6,
            )

    def takes_weight_step(self) -> bool:
        return self.weight_step == "take" or not self._is_update_step_next()

    def observe_gradients(self, params: Sequence[SparseParameter]) -> None:
        self._gradients_seen, self._dense_gradients = {sparse.name for sparse in params}, {}
        if self.wants_gradients():
            # In the optimizer's order, which is that of all ranks: for a sharded gradient this is a collective.
            found = ((sparse.name, sparse.full_gradient()) for sparse in params)
            self._dense_gradients = {name: gradient for name, gradient in found if gradient is not None}

    def wants_gradients(self) -> bool:
        return self.needs_dense_gradients and self._is_update_step_next()

    def growth_limit(self, name: str) -> int | None:
        """The most weights of a parameter that can grow at the coming update; None if that is not known.

        Where it is known, :meth:`dense_gradient` of a compact parameter keeps that number of inactive elements, those
        of the largest magnitude; the others are zero.
        """
        return None

    def forget_gradients(self) -> None:
        self._gradients_seen, self._dense_gradients = None, {}
        for sparse in self.sparse_params.values():
            sparse.forget_gradient()

    def dense_gradient(self) -> torch.Tensor:
        """The gradient of :attr:`current` before it was masked, averaged over ranks, summed over what was accumulated.

        Raises:
            SparsityStateError: there is none. It is kept on update steps only, if ``needs_dense_gradients``.
        """
        name = self.current.name
        if name not in self._dense_gradients:
            raise SparsityStateError(
                f"{type(self).__name__} needs the dense gradient of {name!r}, and there is none: call "
                "sparsity.apply(optimizer) before training, and let optimizer.step() update the masks; where a closure "
                "computes gradients inside of the step, call sparsity.finalize_grads() at its end"
            )
        gradient = self._dense_gradients[name]
        return gradient.dense() if isinstance(gradient, KeptGradient) else gradient

    @property
    def current(self) -> SparseParameter:
        """The parameter whose mask is being updated.

        Raises:
            SparsityStateError: no update is under way.
        """
        if self._current is None:
            raise SparsityStateError("no mask is being updated")
        return self._current

    @torch.no_grad()
    def update(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.step += 1
        params = self._updated_params(optimizer)
        self._report_targets(params)
        if self.is_update_step:
            self._update_masks(params, optimizer)
            for schedule in self.schedules():
                schedule.update(True)
        if self.computed_sparsity_hooks:
            for sparse in params:
                self.computed_sparsity_hooks(self, sparse.name, Share(1 - sparse.nnz / sparse.numel))

    @abstractmethod
    def update_mask(self, p: torch.Tensor, mask: torch.Tensor, sparsity: Share) -> torch.Tensor:
        """The new mask of a parameter.

        Called on update steps, for one parameter after the other, on rank 0 only where there are several.

        Args:
            p: the parameter, after the optimizer's step; whole, even if it is sharded.
            mask: its mask so far, a bool tensor of its shape.
            sparsity: that it should have, within [0, 1].

        Returns:
            A bool tensor of the same shape.
        """

    def settings(self) -> dict[str, str]:
        return {
            **super().settings(),
            "update": repr(self.update_schedule),
            "weight_step": self.weight_step,
            "start_sparse": str(self.starts_sparse),
        }

    def exchange(self, sparse: SparseParameter) -> Exchange | None:
        """What :meth:`update_mask` would change in the mask of a compact parameter, without dense tensors.

        Returns:
            For each active weight whether it stays, and the ascending flat indices of those that grow; None if
            :meth:`update_mask` is to be asked.
        """
        return None

    def _is_update_step_next(self) -> bool:
        return not self.is_dense and self.update_schedule(self.step + 1)

    def _updated_params(self, optimizer: torch.optim.Optimizer | None) -> list[SparseParameter]:
        """The parameters that had a gradient; the others were not trained, and their masks stay."""
        params = self.sparse_params.values() if optimizer is None else self.get_sparse_params(optimizer)
        # Gradients are gone by now where weight steps are skipped, and come late where a closure computes them.
        seen = self._gradients_seen or ()
        return [sparse for sparse in params if sparse.name in seen or sparse.has_gradient]

    def survivors(self) -> torch.Tensor | None:
        """Weights of :attr:`current` that keep value and optimizer states if they are in the new mask; None for all.

        Asked after each :meth:`update_mask`, if ``resets_regrown``.
        """
        return None

    def _update_masks(self, params: Sequence[SparseParameter], optimizer: torch.optim.Optimizer | None) -> None:
        parallel = self.synchronize and is_parallel(self.process_group)
        masks: dict[str, torch.Tensor] = {}
        survivors: dict[str, torch.Tensor] = {}
        exchanges: dict[str, Exchange] = {}
        for sparse in params:
            exchange = None if parallel or self.resets_regrown else self.exchange(sparse)
            if exchange is not None:
                exchanges[sparse.name] = exchange
                continue
            # Every rank gathers a sharded parameter, one of them looks at it.
            values = sparse.full_values()
            if parallel and not is_rank_0(self.process_group):
                masks[sparse.name] = survivors[sparse.name] = sparse.mask
            else:
                masks[sparse.name], survivors[sparse.name] = self._new_mask(sparse, values)
        if parallel:
            masks = broadcast_masks(masks, self.process_group)
            survivors = broadcast_masks(survivors, self.process_group) if self.resets_regrown else {}
        for sparse in params:
            old = sparse.mask.clone() if self.history is not None else None
            if self.resets_regrown:
                sparse.reset_outside(survivors[sparse.name], optimizer)
            if sparse.name in exchanges:
                sparse.exchange(*exchanges[sparse.name])
            else:
                sparse.update(masks[sparse.name])
            if self.history is not None and old is not None:
                self.history.update(sparse.name, old, sparse.mask)

    def _new_mask(self, sparse: SparseParameter, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        level = self.level_of(sparse)
        self._current = sparse
        try:
            mask = self.update_mask(values, sparse.mask, level)
            survivors = self.survivors() if self.resets_regrown else None
        finally:
            self._current = None
        return mask, mask if survivors is None else survivors

    def _report_targets(self, params: Sequence[SparseParameter]) -> None:
        if not self.target_sparsity_hooks:
            return
        for schedule in self.schedules():
            names = [sparse.name for sparse in params if sparse.schedule is schedule]
            if names:
                # By characters, as cstorch does it: "fc1.weight" and "fc2.weight" are "fc*".
                glob = os.path.commonprefix(names) + "*"  # noqa: RUF071
                self.target_sparsity_hooks(self, glob, schedule(self.step).clamped())

    def _check_range(self, sparse: SparseParameter) -> None:
        """Refuse a schedule that will leave no weight, before any training, where its end is known."""
        stop = self.update_schedule.stop
        found = None if stop is None else sparse.schedule.get_min_max_end(self.update_schedule.start, stop - 1)
        if found is not None and self.levels.distribution == "uniform":
            count = self.rule.target(sparse.numel, Share(found[1]).clamped())
            if count < 1:
                raise UsageError(
                    f"the sparsity of {sparse.name!r} rises to {found[1]:g}, which leaves none of its "
                    f"{sparse.numel} weights; lower it, or leave that parameter out"
                )
