"""Magnitude pruning while the model trains: gradual (GMP), or in rounds with rewinding (IMP)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.algorithms.base import SparsityAlgorithm, UserHooks
from sift_onnx.training.sparse.algorithms.dynamic import DynamicSparsityAlgorithm
from sift_onnx.training.sparse.attachment.snapshot import Snapshot
from sift_onnx.training.sparse.configuration import whole
from sift_onnx.training.sparse.schedules.hyper_parameters import Constant, PerUpdate
from sift_onnx.training.sparse.schedules.share import Share, ShareLike
from sift_onnx.training.sparse.schedules.update_schedules import UpdateScheduleLike

__all__ = ["GMP", "IMP", "Rounds"]

RewindHook = Callable[[SparsityAlgorithm, int], None]


class GMP(DynamicSparsityAlgorithm):
    """Keep the weights of the largest magnitude, fewer and fewer (Zhu & Gupta 2017, arXiv:1710.01878).

    Nothing enforces that the sparsity rises. Where it falls, the added weights are zeros, all tied: those that come
    first in the tensor are taken.
    """

    def __init__(self, sparsity: Any = None, **kwargs: Any) -> None:
        """Settings; see :class:`DynamicSparsityAlgorithm`.

        Raises:
            UsageError: the sparsity is constant, so that the masks would never change.
        """
        super().__init__(sparsity, **kwargs)
        default = self.sparsity.default
        if isinstance(default, Constant):
            raise UsageError(
                f"gradual magnitude pruning with the constant sparsity {default.value} would never change a mask; give "
                "a schedule, or use the algorithm 'static'"
            )

    def update_mask(self, p: torch.Tensor, mask: torch.Tensor, sparsity: Share) -> torch.Tensor:
        return self.mask_settings.keep_largest(self.current, p, sparsity, preferred=mask)


class Rounds(PerUpdate):
    """One value for each update, in turn; the last one stays."""

    @property
    def last_index(self) -> int:
        return len(self.values)

    @property
    def is_over(self) -> bool:
        """Whether all values have been used."""
        return self.index >= len(self.values)

    def compute(self, step: int) -> Share:
        return self.values[min(self.index, len(self.values) - 1)]

    def after(self, index: int) -> int:
        return min(index + 1, len(self.values))


class IMP(DynamicSparsityAlgorithm):
    """Train dense, prune the smallest weights, rewind the rest to an early step, train again, round after round.

    Frankle & Carbin 2019 (arXiv:1803.03635), with the rewinding of Frankle et al. 2020 (arXiv:1912.05671). Each update
    is the end of a round: it prunes, within the weights that are left, and then puts every parameter and buffer of the
    model, pruned ones or not, and the optimizer's states back to what they were after step ``rewind_to``. Masks nest.
    The learning rate is the loop's own; see :meth:`register_rewind_hook`.
    """

    def __init__(
        self,
        sparsity: Any = None,
        rounds: int | None = None,
        rewind_to: int = 0,
        update: UpdateScheduleLike = None,
        **kwargs: Any,
    ) -> None:
        """Settings.

        Args:
            sparsity: after the last round, or a list with that after each.
            rounds: number of rounds, of which each prunes the same share of what is left; not with a list.
            rewind_to: step to go back to; 0 for the weights before training. None of the updates may come earlier.
            update: when rounds end, such as ``{"freq": 1000}``; see :class:`DynamicSparsityAlgorithm`.
            kwargs: see :class:`DynamicSparsityAlgorithm`.

        Raises:
            UsageError: rounds that do not fit the sparsity, or a list that falls.
        """
        rewind_to = whole(rewind_to, "rewind_to")
        self.rounds = Rounds(_levels(sparsity, None if rounds is None else whole(rounds, "rounds")))
        super().__init__(self.rounds, update, start_sparse=False, **kwargs)
        self.rewind_to = rewind_to
        first = next((t for t in range(1, rewind_to) if self.update_schedule(t)), None)
        if rewind_to < 0 or first is not None:
            raise UsageError(f"cannot rewind to step {rewind_to}" + (f" at step {first}" if first else ""))
        self._snapshot: Snapshot | None = None
        self._module: torch.nn.Module | None = None
        self._rewind_hooks: UserHooks[SparsityAlgorithm, int] = UserHooks()

    @property
    def is_update_step(self) -> bool:
        return super().is_update_step and not self.rounds.is_over

    def register_rewind_hook(self, hook: RewindHook) -> RemovableHandle:
        """Call ``hook(algorithm, rewind_to)`` after each rewinding, to set back a learning rate, say.

        Returns:
            A handle with ``remove()``.
        """
        return self._rewind_hooks.register(hook)

    def on_sparsified(self, module: torch.nn.Module) -> None:
        # No warning that training starts dense: that is the method.
        self._module = module
        if self.rewind_to == 0:
            self._snapshot = Snapshot.of(module, None)

    @torch.no_grad()
    def update(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        over = self.rounds.is_over
        was = self.rounds.state_dict()
        super().update(optimizer)
        if self.step == self.rewind_to and self._module is not None:
            self._snapshot = Snapshot.of(self._module, optimizer)
        if not over and self.rounds.state_dict() != was and self._snapshot is not None and self._module is not None:
            self._snapshot.restore(self._module, optimizer)
            self._rewind_hooks(self, self.rewind_to)

    def update_mask(self, p: torch.Tensor, mask: torch.Tensor, sparsity: Share) -> torch.Tensor:
        return self.mask_settings.prune_smallest(self.current, p, mask, sparsity)

    def settings(self) -> dict[str, str]:
        return {**super().settings(), "rewind_to": str(self.rewind_to)}

    def state_dict(self) -> dict[str, Any]:
        snapshot = None if self._snapshot is None else self._snapshot.state_dict()
        return {**super().state_dict(), "snapshot": snapshot}

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        snapshot = state_dict.get("snapshot")
        self._snapshot = None if snapshot is None else Snapshot.from_state_dict(snapshot)


def _levels(sparsity: Any, rounds: int | None) -> list[ShareLike]:
    if isinstance(sparsity, (list, tuple)):
        levels = [Share(value) for value in sparsity]
        if rounds is not None and rounds != len(levels):
            raise UsageError(f"{len(levels)} sparsities for {rounds} rounds; leave 'rounds' out")
        if not levels or sorted(levels) != levels:
            raise UsageError(f"sparsities of rounds rise, unlike {list(map(float, levels))}")
        return list(levels)
    if sparsity is None or callable(sparsity) or isinstance(sparsity, Mapping):
        raise UsageError("iterative magnitude pruning needs the sparsity after the last round, or a list of them")
    final, number = Share(sparsity), 1 if rounds is None else rounds
    if not 0 <= final < 1 or number < 1:
        raise UsageError(f"sparsity {sparsity} in {number} rounds is out of range; use 0 <= sparsity < 1, 1 or more")
    return [*(1 - (1 - float(final)) ** (i / number) for i in range(1, number)), final]
