"""Paths that are refused before any work is done: models that are not there, and targets that cannot be written."""

from __future__ import annotations

import stat
from pathlib import Path

from sift_onnx.errors import ModelReadError, OutputError

__all__ = ["check_input", "check_name_for_onnx", "check_output", "refuse_dash"]


def check_input(path: Path) -> None:
    """Refuse a model file that is not there; what else may be wrong with it is said when it is read.

    Raises:
        ModelReadError: there is no such file, or it is a folder or a device.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        dash = "; models are not read from '-', but from /dev/stdin" if str(path) == "-" else ""
        raise ModelReadError(f"{path}: no such file{dash}") from error
    except OSError:
        return
    except ValueError as error:
        raise ModelReadError(f"cannot read {path}: there is a null character in the name") from error
    if stat.S_ISDIR(mode):
        raise ModelReadError(f"{path} is a folder; name the .onnx file in it")
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):  # some never end
        raise ModelReadError(f"{path} is a device; name a file")


def check_name_for_onnx(path: str | Path) -> None:
    """Refuse a name that onnx and onnxruntime cannot open: their bindings take UTF-8 only.

    Raises:
        ModelReadError: it is one.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise ModelReadError(f"the name of {path} is not UTF-8, and onnxruntime cannot open it; rename it") from error


def refuse_dash(path: Path) -> None:
    """Refuse ``-``, which stands for stdout where text is written.

    Raises:
        OutputError: it is one.
    """
    if str(path) == "-":
        raise OutputError("'-' is not a file name: what is written here does not go to stdout; name a file")


def check_output(path: Path, force: bool) -> None:
    """Refuse a target early, before any work is done.

    Raises:
        OutputError: the folder is missing, the file exists and ``force`` is off, or the path is not an ordinary file or
            is a dash, which stands for stdout elsewhere.
    """
    refuse_dash(path)
    if "\0" in str(path):
        raise OutputError(f"cannot write {path}: there is a null character in the name")
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a folder; name a file")
        if path.parent.exists() and not path.parent.is_dir():
            raise OutputError(f"cannot write {path}: {path.parent} is not a folder")
        if not path.parent.is_dir():
            raise OutputError(f"cannot write {path}: the folder {path.parent} does not exist")
        if path.exists() and not path.is_file():
            raise OutputError(f"{path} is a device or the like, which cannot be replaced; name a file")
        if path.exists() and not force:
            raise OutputError(f"{path} exists already; use `force=True` to overwrite it")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
