"""User hooks: functions that an algorithm calls with sparsity values or steps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, ParamSpec

from torch.utils.hooks import RemovableHandle

__all__ = ["UserHooks"]

_Arguments = ParamSpec("_Arguments")


class UserHooks(Generic[_Arguments]):
    """Functions of the same arguments, in the order of their registration."""

    def __init__(self) -> None:
        self._hooks: OrderedDict[int, Callable[_Arguments, None]] = OrderedDict()

    def register(self, hook: Callable[_Arguments, None]) -> RemovableHandle:
        """Add a function; the handle's ``remove()`` takes it out."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    def __len__(self) -> int:
        return len(self._hooks)

    def __call__(self, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        for hook in list(self._hooks.values()):
            hook(*args, **kwargs)
