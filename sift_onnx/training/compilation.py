"""What ``torch.compile`` has to leave out of its graphs: code that reads or writes the memory of tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

__all__ = ["never_compiled"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def never_compiled(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The function, which runs between compiled graphs; the compiler's own tensors have no memory."""

    @functools.wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if torch.compiler.is_compiling():
            # Not when the function is made: the compiler takes a second to import.
            return torch.compiler.disable(function)(*args, **kwargs)  # type: ignore[no-any-return,no-untyped-call]
        return function(*args, **kwargs)

    return call
