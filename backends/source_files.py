"""The files that a model was read from, which may be read again later: by another session, or in a forked child."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import onnx

from sift_onnx.backends.forks import renew_in_children
from sift_onnx.errors import BackendError
from sift_onnx.files.external_data import DataFiles, external_tensors

__all__ = ["FileStamp", "SourceFiles", "Sources", "data_files"]


@dataclass(frozen=True)
class FileStamp:
    """What tells that a file is the one that was read, without reading it again.

    Attributes:
        path: of the file, or of a link to it.
        size: in bytes.
        modified: in nanoseconds.
        changed: when its entry in the file system changed, which no program sets.
        number: of the file in its file system.
    """

    path: str
    size: int
    modified: int
    changed: int
    number: int

    @classmethod
    def of(cls, path: str) -> FileStamp:
        """Of a file as it is now.

        Raises:
            OSError: it is gone.
        """
        found = os.stat(path)
        return cls(path, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)

    def is_old(self, now: int, nanoseconds: int) -> bool:
        """Whether the file had been left alone for so long: a later change shows in its times."""
        return max(self.modified, self.changed) + nanoseconds < now

    def is_still_there(self) -> bool:
        """Whether the file is the one that it was."""
        try:
            return FileStamp.of(self.path) == self
        except OSError:
            return False


@dataclass(frozen=True)
class SourceFiles:
    """A model's file and those of its external data, as they were when a session was created.

    Attributes:
        path: of the model's file.
        stamps: of all; None for one that was gone.
    """

    path: str
    stamps: tuple[FileStamp | None, ...]

    @classmethod
    def of(cls, path: str, others: Iterable[str] = ()) -> SourceFiles:
        """The files as they are now.

        Args:
            path: of the model's file.
            others: of its external data.
        """
        return cls(path, tuple(map(_stamp, (path, *others))))

    def is_unchanged(self) -> bool:
        """Whether all files are still there, as they were."""
        return all(stamp is not None and stamp.is_still_there() for stamp in self.stamps)

    def check(self) -> None:
        """Nothing, if they are.

        Raises:
            BackendError: they are not.
        """
        if not self.is_unchanged():
            raise BackendError(f"{self.path!r} has changed since the session was created")


class Sources:
    """Copies of one model that sessions share: whichever is still there can be read again."""

    def __init__(self, first: SourceFiles) -> None:
        """Begin with those of the first session."""
        self._files = [first]
        self._lock = threading.Lock()
        renew_in_children(self)

    def renew(self) -> None:
        """In a forked child: a thread that it does not have may hold the lock."""
        self._lock = threading.Lock()

    def add(self, files: SourceFiles) -> None:
        """Those of another session."""
        with self._lock:
            if files not in self._files:
                self._files.append(files)

    def unchanged(self) -> SourceFiles:
        """Files that are as they were.

        Raises:
            BackendError: there are none.
        """
        with self._lock:
            self._files[1:] = [files for files in self._files[1:] if files.is_unchanged()]
            found = next((files for files in self._files if files.is_unchanged()), self._files[0])
        found.check()
        return found


def data_files(path: Path, model: onnx.ModelProto) -> list[str]:
    """The files of a model's external data.

    Args:
        path: of the model's file.
        model: what is in it.

    Raises:
        ModelReadError: one is missing, or outside the model's folder.
    """
    files = DataFiles(path)
    # Links are not resolved: one that points to another file later has other stamps. What was cut out of the model's
    # file to be read later has no entries.
    paths = {os.path.abspath(files.path_of(tensor)) for tensor in external_tensors(model) if tensor.external_data}
    return sorted(paths)


def _stamp(path: str) -> FileStamp | None:
    try:
        return FileStamp.of(path)
    except OSError:
        return None
