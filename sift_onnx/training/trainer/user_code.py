"""Functions in files of the user's own: ``FILE.py:FUNCTION``."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sift_onnx.errors import UsageError

__all__ = ["first_line", "load_function"]


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
    # Under a unique name: two files may have the same one, and neither may shadow an installed module.
    unique = f"_sift_onnx_user_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    found = importlib.util.spec_from_file_location(unique, path)
    assert found is not None and found.loader is not None  # holds for every name that ends in .py
    module = importlib.util.module_from_spec(found)
    sys.modules[unique] = module  # dataclasses and the workers of a DataLoader look their module up here
    try:
        found.loader.exec_module(module)
    except Exception as error:
        del sys.modules[unique]
        raise UsageError(f"{option} {spec!r}: the file does not load: {first_line(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{option} {spec!r}: {file} has no function {name!r}")
    return function  # type: ignore[no-any-return]


def first_line(error: BaseException) -> str:
    """``Type: first line of the message``."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
