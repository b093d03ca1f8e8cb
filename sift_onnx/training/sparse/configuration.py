"""What a configuration holds, checked where it is given: numbers, which may come from YAML, and names of classes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from numbers import Integral
from typing import Any, TypeVar

from sift_onnx.errors import UsageError

__all__ = ["above_0", "classes_by_name", "finite", "whole"]

_Class = TypeVar("_Class")


def finite(value: Any, what: str) -> float:
    """``value`` as a float.

    Args:
        value: a number, or its spelling: YAML reads 1e-3 as text.
        what: its name.

    Raises:
        UsageError: it is not a finite number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, bool):
        raise UsageError(f"{what} is {value!r}; it has to be a finite number")
    return number


def above_0(value: Any, name: str, owner: str) -> float:
    """``value`` as a float, as :func:`finite` has it.

    Args:
        value: a number, or its spelling.
        name: its name.
        owner: what it is a setting of.

    Raises:
        UsageError: it is not a finite number above 0.
    """
    number = finite(value, f"the {name} of {owner}")
    if number <= 0:
        raise UsageError(f"{owner} needs a {name} above 0, not {value!r}")
    return number


def whole(value: Any, what: str) -> int:
    """``value`` as an integer.

    Args:
        value: a whole number.
        what: its name.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise UsageError(f"{what} is {value!r}; it has to be a whole number")
    return int(value)


def classes_by_name(base: type[_Class]) -> dict[str, type[_Class]]:
    """The concrete subclasses of ``base``, also a user's, by their names in lower case.

    Of several classes of one name the one that was defined last counts.
    """
    return {cls.__name__.lower(): cls for cls in _subclasses(base) if not inspect.isabstract(cls)}


def _subclasses(cls: type[_Class]) -> Iterator[type[_Class]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
