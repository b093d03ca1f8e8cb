"""Which sparsity schedule belongs to which parameter."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.errors import MissingSettingError, refuse_pickling
from sift_onnx.training.sparse.schedules.hyper_parameters import (
    Constant,
    Cycling,
    HyperParameterSchedule,
    make_hyperparam_schedule,
)

__all__ = ["ParameterSchedules"]


class ParameterSchedules:
    """Schedules of single parameters, and one for all others.

    Attributes:
        default: of the parameters without a schedule; None if those have none.
    """

    def __init__(self, sparsity: Any = None) -> None:
        """The schedules that a setting stands for.

        Args:
            sparsity: what :func:`make_hyperparam_schedule` takes, ``{parameter: that}``, or None.

        Raises:
            UsageError: a number is below 0 or above 1.
        """
        self.default: HyperParameterSchedule | None = None
        self._own: Any = WeakIdKeyDictionary()
        if isinstance(sparsity, Mapping) and any(isinstance(key, torch.Tensor) for key in sparsity):
            for param, schedule in sparsity.items():
                self[param] = schedule
        elif sparsity is not None:
            self.default = _schedule(sparsity)

    def __contains__(self, param: torch.Tensor) -> bool:
        return self.default is not None or param in self._own

    def __getitem__(self, param: torch.Tensor) -> HyperParameterSchedule:
        schedule: HyperParameterSchedule | None = self._own.get(param, self.default)
        if schedule is None:
            what = "has no sparsity for this parameter" if len(self._own) else "expected `sparsity`, but got none"
            raise MissingSettingError(f"the sparsity algorithm {what}; give a number, or one for every parameter")
        return schedule

    def __setitem__(self, param: torch.Tensor, schedule: Any) -> None:
        self._own[param] = _schedule(schedule)

    def __deepcopy__(self, memo: dict[int, Any]) -> ParameterSchedules:
        twin = ParameterSchedules()
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        # Parameters are known by their identity, which a pickle loses.
        if len(self._own):
            refuse_pickling("a sparsity algorithm that is applied to a model")
        return ParameterSchedules, (self.default,)

    @property
    def is_empty(self) -> bool:
        """Whether there is not a single schedule."""
        return self.default is None and not len(self._own)

    def values(self) -> Iterator[HyperParameterSchedule]:
        """Every schedule."""
        if self.default is not None:
            yield self.default
        yield from self._own.values()

    def with_default(self, sparsity: Any) -> ParameterSchedules:
        """These, with another schedule for the parameters that have none of their own."""
        changed = ParameterSchedules(sparsity)
        for param, schedule in self._own.items():
            if param not in changed._own:
                changed._own[param] = schedule
        return changed


def _schedule(sparsity: Any) -> HyperParameterSchedule:
    """The schedule of a setting. What a formula gives may leave [0, 1], a number may not."""
    schedule = make_hyperparam_schedule(sparsity)
    values = schedule.values if isinstance(schedule, Cycling) else []
    for value in [schedule.value] if isinstance(schedule, Constant) else values:
        if not 0 <= value <= 1:
            raise UsageError(f"sparsity {float(value):g} is out of range; use 0.0 <= sparsity < 1.0")
    return schedule
