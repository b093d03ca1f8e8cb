"""Classes by the names that configurations call them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TypeVar

__all__ = ["classes_by_name"]

_Class = TypeVar("_Class")


def classes_by_name(base: type[_Class]) -> dict[str, type[_Class]]:
    """The concrete subclasses of ``base``, also a user's, by their names in lower case.

    Of several classes of one name the one that was defined last counts.
    """
    return {cls.__name__.lower(): cls for cls in _subclasses(base) if not inspect.isabstract(cls)}


def _subclasses(cls: type[_Class]) -> Iterator[type[_Class]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
