"""When masks are updated."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.configuration import whole

__all__ = [
    "FreqSchedule",
    "ListSchedule",
    "StrictFreqSchedule",
    "UpdateSchedule",
    "UpdateScheduleLike",
    "make_update_schedule",
]


class UpdateSchedule(ABC):
    """Which steps are update steps.

    Steps count calls of ``optimizer.step``. Step 0 is before the first and never updates a mask; it only decides
    whether training starts sparse.

    Attributes:
        start: the first step that may be an update step.
        stop: the first step after the last possible update step; None for no end.
    """

    start: int = 0
    stop: int | None = None

    @abstractmethod
    def is_update_step(self, step: int) -> bool:
        """Whether masks are updated after the optimizer's step number ``step``."""

    def __call__(self, step: int | torch.Tensor) -> bool:
        return self.is_update_step(int(step))

    @property
    def starts_sparse(self) -> bool:
        """Whether the first mask has the sparsity that was asked for; it is all ones otherwise."""
        return self(0)

    def __repr__(self) -> str:
        settings = ", ".join(f"{k}={v}" for k, v in sorted(vars(self).items()))
        return f"{type(self).__name__}({settings})"


class FreqSchedule(UpdateSchedule):
    """Every ``freq`` steps from ``start`` on, before ``stop``: ``(t - start) % freq == 0 and start <= t < stop``."""

    def __init__(self, freq: int = 1, start: int = 0, stop: int | None = None) -> None:
        _check_range(freq, start, stop)
        self.freq, self.start, self.stop = freq, start, stop

    def is_update_step(self, step: int) -> bool:
        return (step - self.start) % self.freq == 0 and step >= self.start and (self.stop is None or step < self.stop)


class StrictFreqSchedule(UpdateSchedule):
    """``t % freq == 0 and start < t < stop``, and training starts sparse: the paper's code."""

    def __init__(self, freq: int = 100, start: int = 0, stop: int | None = None) -> None:
        _check_range(freq, start, stop)
        self.freq, self.start, self.stop = freq, start, stop

    def is_update_step(self, step: int) -> bool:
        return step % self.freq == 0 and step > self.start and (self.stop is None or step < self.stop)

    @property
    def starts_sparse(self) -> bool:
        return True


class ListSchedule(UpdateSchedule):
    """At the steps that are listed."""

    def __init__(self, steps: Iterable[int]) -> None:
        if isinstance(steps, (str, float, int)):
            raise UsageError(f"steps is {steps!r}; write a list, as [100, 300]")
        self.steps = frozenset(whole(step, "a step of an update schedule") for step in steps)
        if not self.steps or min(self.steps) < 0:
            raise UsageError("an update schedule lists one step or more, none of them below 0")
        self.start, self.stop = min(self.steps), max(self.steps) + 1

    def is_update_step(self, step: int) -> bool:
        return step in self.steps

    def __repr__(self) -> str:
        return f"ListSchedule(steps={sorted(self.steps)})"


class _FunctionSchedule(UpdateSchedule):
    """At the steps for which a function returns true; it takes the step as a tensor that holds one integer."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        self.function = function

    def is_update_step(self, step: int) -> bool:
        return bool(self.function(torch.tensor(step)))

    def __repr__(self) -> str:
        return f"FunctionSchedule({getattr(self.function, '__qualname__', type(self.function).__name__)})"


UpdateScheduleLike = Mapping[str, Any] | Callable[[torch.Tensor], Any] | UpdateSchedule | None


def make_update_schedule(update: UpdateScheduleLike, *, strict: bool = False) -> UpdateSchedule:
    """The schedule that a setting stands for.

    Args:
        update: None for every step; ``{"freq": f, "start": 0, "stop": None}``; ``{"steps": [...]}``; a function of the
            step; or a schedule.
        strict: exclude the bounds; see :class:`StrictFreqSchedule`.

    Raises:
        UsageError: it stands for none.
    """
    if isinstance(update, UpdateSchedule):
        return update
    every = StrictFreqSchedule if strict else FreqSchedule
    if update is None:
        return every()
    kind: Any = ListSchedule if isinstance(update, Mapping) and "steps" in update else every
    if isinstance(update, Mapping) and (strict or "freq" in update or "steps" in update):
        try:
            inspect.signature(kind).bind(**update)
        except TypeError as error:
            raise UsageError(f"update {dict(update)}: {error}") from error
        schedule: UpdateSchedule = kind(**update)
        return schedule
    if callable(update):
        return _FunctionSchedule(update)
    raise UsageError(
        f"update {update!r} is unknown; use None for every step, {{'freq': 100, 'start': 0, 'stop': 1000}}, "
        "{'steps': [100, 300]}, or a function of the step"
    )


def _check_range(freq: int, start: int, stop: int | None) -> None:
    if any(not isinstance(value, int) for value in (freq, start, 0 if stop is None else stop)):
        raise UsageError(f"updates need whole steps, not freq {freq!r}, start {start!r}, stop {stop!r}")
    if freq < 1 or start < 0:
        raise UsageError(f"updates every {freq} steps from step {start}: use a freq of 1 or more, a start of 0 or more")
    if stop is not None and stop <= start:
        raise UsageError(f"updates from step {start} to step {stop} never happen; raise stop")
