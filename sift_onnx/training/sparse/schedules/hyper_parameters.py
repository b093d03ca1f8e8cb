"""Settings that change with the step: sparsities and drop fractions."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.configuration import above_0, classes_by_name, finite, whole
from sift_onnx.training.sparse.schedules.share import Share, ShareLike

__all__ = [
    "Constant",
    "Cosine",
    "Cubic",
    "Cycling",
    "Exp",
    "ExponentialK",
    "HyperParameterSchedule",
    "Lambda",
    "Linear",
    "PerUpdate",
    "Power",
    "ScheduleLike",
    "make_hyperparam_schedule",
]

Step = int | torch.Tensor


class HyperParameterSchedule(ABC):
    """A value for each step.

    Steps count calls of ``optimizer.step``; step 0 is before the first. Values may leave [0, 1]: their users clamp
    them. Names, arguments and formulas are those of ``cstorch.sparse.utils``.
    """

    @abstractmethod
    def compute(self, step: int) -> ShareLike:
        """The value at ``step``."""

    def __call__(self, step: Step) -> Share:
        return Share(self.compute(int(step)))

    def update(self, is_update_step: bool) -> None:  # noqa: B027
        """Move on, if ``is_update_step``; called once in each step, after the value was used."""

    def get_min_max_end(self, begin: int, end: int) -> tuple[float, float, float] | None:
        """Smallest, largest and last value from step ``begin`` to ``end``, or None if that is unknown.

        As it stands here it takes the schedule to be monotone.
        """
        first, last = float(self(begin)), float(self(end))
        return min(first, last), max(first, last), last

    def visit_state(self, visit: Callable[[torch.Tensor], torch.Tensor | None]) -> None:  # noqa: B027
        """Call ``visit`` with each stateful tensor, and take over what it returns."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs; empty if the value depends on the step alone."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Take over a :meth:`state_dict`."""

    def __repr__(self) -> str:
        settings = ", ".join(f"{k}={v}" for k, v in sorted(vars(self).items()) if not k.startswith("_"))
        return f"{type(self).__name__}({settings})"


class Constant(HyperParameterSchedule):
    """The same value at every step."""

    def __init__(self, value: ShareLike) -> None:
        self.value = Share(value)

    def compute(self, step: int) -> Share:
        return self.value


class Linear(HyperParameterSchedule):
    """``init + slope * step``."""

    def __init__(self, init: ShareLike, slope: ShareLike) -> None:
        self.init, self.slope = Share(init), Share(slope)

    def compute(self, step: int) -> Fraction:
        return self.init.exact + self.slope.exact * step


class Exp(HyperParameterSchedule):
    """``final + (init - final) * e ** (gamma * step)``; ``gamma`` is negative for a value that settles."""

    def __init__(self, init: ShareLike, gamma: float, final: ShareLike = 1) -> None:
        self.init, self.gamma, self.final = Share(init), finite(gamma, "the gamma of an exp schedule"), Share(final)

    def compute(self, step: int) -> float:
        return self.final + (self.init - self.final) * math.exp(self.gamma * step)


class Power(HyperParameterSchedule):
    """``init * beta ** step``."""

    def __init__(self, init: ShareLike, beta: float) -> None:
        self.init, self.beta = Share(init), finite(beta, "the beta of a power schedule")

    def compute(self, step: int) -> float:
        return float(self.init * self.beta**step)


class Cosine(HyperParameterSchedule):
    """From ``init`` down to ``minimum`` within ``half_period`` steps, and up again in the next as many.

    ``o + a * cos(pi * step / half_period)`` with ``o = (init + minimum) / 2`` and ``a = init - o``. An update schedule
    that should not see it climb needs a ``stop``.
    """

    def __init__(self, init: ShareLike, half_period: float, minimum: ShareLike = 0) -> None:
        self.init, self.minimum = Share(init), Share(minimum)
        self.half_period = above_0(half_period, "half_period", "a cosine schedule")

    def compute(self, step: int) -> float:
        offset = (self.init + self.minimum) / 2
        return offset + (self.init - offset) * math.cos(math.pi * step / self.half_period)

    def get_min_max_end(self, begin: int, end: int) -> tuple[float, float, float]:
        low, high = sorted((float(self.init), float(self.minimum)))
        return low, high, float(self(end))


class Cubic(HyperParameterSchedule):
    """From ``init`` at step ``start`` to ``final`` at step ``stop``, fast at first; constant before and after.

    ``final + (init - final) * (1 - (step - start) / (stop - start)) ** 3``: Zhu & Gupta 2017, "To prune, or not to
    prune", equation 1. cstorch has no such schedule.
    """

    def __init__(self, final: ShareLike, stop: int, init: ShareLike = 0, start: int = 0) -> None:
        self.init, self.final = Share(init), Share(final)
        self.start = whole(start, "the start of a cubic schedule")
        self.stop = whole(stop, "the stop of a cubic schedule")
        if stop <= start:
            raise UsageError(f"a cubic schedule from step {start} cannot end at step {stop}")

    def compute(self, step: int) -> Fraction:
        left = 1 - Fraction(min(max(step, self.start), self.stop) - self.start, self.stop - self.start)
        return self.final.exact + (self.init.exact - self.final.exact) * left**3


class ExponentialK(HyperParameterSchedule):
    """``init * e ** (-k * step / period)``: the ``exponential_k`` decay of the paper's code."""

    def __init__(self, init: ShareLike, k: float, period: float) -> None:
        self.init, self.k = Share(init), finite(k, "the k of an exponentialk schedule")
        self.period = above_0(period, "period", "an exponentialk schedule")

    def compute(self, step: int) -> float:
        return float(self.init * math.exp(-self.k * step / self.period))


class PerUpdate(HyperParameterSchedule):
    """One value after the other, the next one at each update; subclasses differ in what follows the last.

    Attributes:
        values: in their order, one or more.
    """

    def __init__(self, values: Sequence[ShareLike]) -> None:
        if not isinstance(values, (list, tuple)):
            raise UsageError(f"values is {values!r}; a schedule of type {type(self).__name__.lower()!r} needs a list")
        self.values = [Share(value) for value in values]
        if not self.values:
            raise UsageError(f"a schedule of type {type(self).__name__.lower()!r} needs one value or more")
        self._index = 0

    @property
    def index(self) -> int:
        """Of the next value; after the last one where none is left."""
        return self._index

    @property
    @abstractmethod
    def last_index(self) -> int:
        """The largest that :attr:`index` can be."""

    @abstractmethod
    def after(self, index: int) -> int:
        """What follows ``index`` at an update."""

    def update(self, is_update_step: bool) -> None:
        if is_update_step:
            self._index = self.after(self._index)

    def get_min_max_end(self, begin: int, end: int) -> tuple[float, float, float]:
        return float(min(self.values)), float(max(self.values)), float(self.values[-1])

    def visit_state(self, visit: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        seen = visit(torch.tensor(self._index))
        if seen is not None:
            self._index = int(seen)

    def state_dict(self) -> dict[str, Any]:
        return {"index": self._index}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        index = int(state["index"])
        if not 0 <= index <= self.last_index:
            kind = type(self).__name__.lower()
            raise UsageError(f"a {kind} schedule of {len(self.values)} values cannot resume at its number {index}")
        self._index = index


class Cycling(PerUpdate):
    """One value after the other, the next one at each update, and from the start again after the last.

    For sparsities the first value is that of the initial mask; the k-th update uses ``values[k]``.
    """

    @property
    def last_index(self) -> int:
        return len(self.values) - 1

    def compute(self, step: int) -> Share:
        return self.values[self.index]

    def after(self, index: int) -> int:
        return (index + 1) % len(self.values)


class Lambda(HyperParameterSchedule):
    """What a function of the step returns; it is called with the step as a tensor that holds one integer."""

    def __init__(self, fn: Callable[[torch.Tensor], ShareLike]) -> None:
        self.fn = fn

    def compute(self, step: int) -> ShareLike:
        return self.fn(torch.tensor(step))

    def get_min_max_end(self, begin: int, end: int) -> None:
        return None

    def __repr__(self) -> str:
        return f"Lambda({getattr(self.fn, '__qualname__', type(self.fn).__name__)})"


ScheduleLike = (
    ShareLike | Sequence[ShareLike] | Mapping[str, Any] | Callable[[torch.Tensor], ShareLike] | HyperParameterSchedule
)


def make_hyperparam_schedule(schedule: Any) -> HyperParameterSchedule:
    """The schedule that a setting stands for.

    Args:
        schedule: a number (:class:`Constant`), a list (:class:`Cycling`), a function of the step (:class:`Lambda`),
            ``{"type": name, ...}`` with the lower-cased name of a subclass of :class:`HyperParameterSchedule`
            (also a user's) and its arguments, or a schedule.

    Raises:
        UsageError: it stands for none.
    """
    if isinstance(schedule, HyperParameterSchedule):
        return schedule
    if isinstance(schedule, (list, tuple)):
        return Cycling(schedule)
    if isinstance(schedule, Mapping):
        return _by_type(schedule)
    if callable(schedule) and not isinstance(schedule, torch.Tensor):
        try:
            inspect.signature(schedule).bind(None)
        except TypeError as error:
            raise UsageError(f"a schedule function takes the step, and nothing else: {error}") from error
        except ValueError:
            pass  # a builtin without a signature
        return Lambda(schedule)
    return Constant(schedule)


def _by_type(settings: Mapping[str, Any]) -> HyperParameterSchedule:
    arguments = dict(settings)
    name = arguments.pop("type", None)
    known = classes_by_name(HyperParameterSchedule)  # type: ignore[type-abstract]
    if not isinstance(name, str) or name.lower() not in known:
        raise UsageError(f"schedule {dict(settings)} has type {name!r}; choose one of {', '.join(sorted(known))}")
    cls = known[name.lower()]
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        raise UsageError(f"schedule {name!r}: {error}; it takes {inspect.signature(cls)}") from error
    return cls(**arguments)
