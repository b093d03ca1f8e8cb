"""Functions in files of the user's own: ``FILE.py:FUNCTION``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sift_onnx.errors import UsageError
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
        raise UsageError(f"{option} {spec!r}: {file} has no function {name!r}")
    return function  # type: ignore[no-any-return]
