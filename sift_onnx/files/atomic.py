"""Atomic writes: a file is written under a temporary name, and renamed once it is on the disk."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from sift_onnx.errors import OutputError

__all__ = ["atomic_file", "resolve_links", "sync"]


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file that replaces ``path`` when the block ends without an error, and is removed otherwise.

    Its content is on the disk before it gets the name, and the name before this returns: a machine that loses power
    comes back with the old file or the new one. Where ``path`` is a link, the file that it points to is replaced.

    Raises:
        OutputError: the file cannot be written.
    """
    temporary = None
    try:
        target = resolve_links(path)
        temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(6)}.part")
        # Not by tempfile, so that the file gets the permissions that the umask leaves.
        with open(temporary, "xb", buffering=1 << 20) as file:
            yield file
            sync(file)
        os.replace(temporary, target)
        temporary = None
        _sync_names(target.parent)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


def sync(file: BinaryIO) -> None:
    """Wait until what was written to ``file`` is on the disk.

    Raises:
        OSError: it does not get there; a file system may say only now that it is full.
    """
    file.flush()
    os.fsync(file.fileno())


def _sync_names(folder: Path) -> None:
    # The new file is in place and whole, so no reason to fail: some file systems cannot do this, and a folder that may
    # be written but not listed cannot be opened.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def resolve_links(path: Path) -> Path:
    """The path that ``path`` links to, whether or not a file is there.

    Raises:
        OSError: links in a circle.
    """
    try:
        return path.resolve()
    except RuntimeError as error:  # what Python before 3.13 makes of links in a circle
        raise OSError(str(error)) from error
