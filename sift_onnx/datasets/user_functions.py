"""Functions in files of the user's own: ``FILE.py:FUNCTION``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from sift_onnx.errors import UsageError, listing
from sift_onnx.plugins import first_line, load_file

__all__ = ["load_function"]


def load_function(spec: str, option: str) -> Callable[..., Any]:
    """The function of a file; the file is executed.

    Args:
        spec: ``FILE.py:FUNCTION``.
        option: what asks for it, for error messages.

    Raises:
        UsageError: there is no such file or function, or the file does not load.
    """
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if not file.endswith(".py") or not name.isidentifier():
        raise UsageError(f"{option} is {spec!r}; write FILE.py:FUNCTION")
    if not path.is_file():
        raise UsageError(f"{option} {spec!r}: there is no file {file!r}")
    try:
        module = load_file(path)
    except Exception as error:
        raise UsageError(f"{option} {spec!r}: the file does not load: {first_line(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        own = [n for n, v in vars(module).items() if isinstance(v, FunctionType) and v.__module__ == module.__name__]
        there = f"; it has {listing(own)}" if own else ""
        raise UsageError(f"{option} {spec!r}: {file} has no function {name!r}{there}")
    return function  # type: ignore[no-any-return]
