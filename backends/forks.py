"""Locks and thread pools after a fork: the child has copies of the memory, but none of the parent's threads."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Protocol

__all__ = ["Inherited", "keep_for_ever", "renew_in_children"]


class Inherited(Protocol):
    """An object that has to be renewed in a forked child."""

    def renew(self) -> None:
        """Called in the child before anything else runs in it; must not wait or destroy anything."""


_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()


def renew_in_children(one: Inherited) -> None:
    """Have ``one`` renewed in every forked child, as long as it lives."""
    _inherited.add(one)


def keep_for_ever(thing: object) -> None:
    """Never destroy ``thing``, not even at exit: its destructor would wait for the parent's threads."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _renew_all() -> None:
    for one in tuple(_inherited):
        one.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
