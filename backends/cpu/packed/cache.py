"""A folder of lowered models, from which a session opens without reading its model.

A file is found by what its model holds, and by all else that the plan depends on. Whether a model file still holds what
it did is told by its size and times, as version control does; where it cannot be told, the file is read.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.lower.lowered_model import LoweredModel, ModelMetadata
from sift_onnx.backends.cpu.packed.content_keys import content_of_files, content_of_model, files_of, setting_key
from sift_onnx.backends.cpu.packed.packed_file import DamagedFile, PackedFile, write_packed
from sift_onnx.backends.cpu.packed.plain_values import NotStored, from_plain, to_plain
from sift_onnx.backends.cpu.packed.stored_weights import made_weights, plain_weights
from sift_onnx.backends.source_files import FileStamp
from sift_onnx.errors import OutputError, UsageError
from sift_onnx.model import Model

__all__ = ["PackedCache"]

# A file that was written so short a time ago may be written again without a change of its times.
_SETTLED_NANOSECONDS = 2_000_000_000
_NAMES = ("plan", "inputs", "outputs", "metadata", "is_timed", "is_widened", "equal")


@dataclass(frozen=True)
class ModelKey:
    """What a lowered model is stored under.

    Attributes:
        text: of the model's content and of all else that its plan depends on.
        content: of the model.
        files: that it is stored in; none of a model in memory.
    """

    text: str
    content: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class PackedCache:
    """Lowered models in a folder.

    Attributes:
        folder: of the files.
    """

    folder: Path

    @classmethod
    def at(cls, folder: str | os.PathLike[str]) -> PackedCache:
        """The cache in a folder, which is made if it is missing.

        Raises:
            UsageError: it is no folder, cannot be made, or others may write to it.
        """
        path = Path(folder)
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = path.stat()
        except OSError as error:
            raise UsageError(f"packed_cache: cannot use the folder {str(path)!r}: {error.strerror}") from error
        if hasattr(os, "getuid") and (found.st_uid not in (os.getuid(), 0) or found.st_mode & 0o022):
            raise UsageError(
                f"packed_cache: others may write to {str(path)!r}, and sessions would run what they put there; "
                "chmod go-w it, or name a folder of your own"
            )
        return cls(path)

    def key(
        self, model: str | os.PathLike[str] | onnx.ModelProto | Model, options: CompileOptions, isa: str
    ) -> ModelKey:
        """What ``model`` is stored under.

        Raises:
            ModelReadError: a file is missing, or is no model.
        """
        files: tuple[str, ...] = ()
        if isinstance(model, (str, os.PathLike)):
            content, files = self._content_of_path(os.fspath(model))
        else:
            content = content_of_model(model)
        text = hashlib.sha256(f"{content} {setting_key(options, isa)}".encode()).hexdigest()
        return ModelKey(text, content, files)

    def find(self, key: ModelKey, threads: int, isa: str) -> LoweredModel | None:
        """What is stored under ``key``, packed for kernels of an instruction set.

        None if there is nothing, with a warning if it is damaged.
        """
        path = self._path(key)
        try:
            file = PackedFile(path, key.text)
            try:
                plan = file.plan
                weights = made_weights(plan["weights"], file.array, threads, isa)
                told = {name: from_plain(plan[name], file.array) for name in _NAMES}
            finally:
                file.close()
            metadata = ModelMetadata(**told.pop("metadata"))
            return LoweredModel(weights=weights, metadata=metadata, **told)
        except FileNotFoundError:
            return None
        except (DamagedFile, ImportError, LookupError, TypeError, ValueError) as error:
            warnings.warn(f"packed_cache: {path} is not used and will be replaced: {error}", UserWarning, stacklevel=4)
            return None

    def add(self, key: ModelKey, lowered: LoweredModel) -> None:
        """Store a model under ``key``; a warning says where that cannot be done."""
        arrays: list[Any] = []
        try:
            if key.files and content_of_files(key.files) != key.content:
                return  # it was written to before it was read
            plain = {name: to_plain(getattr(lowered, name), arrays) for name in _NAMES if name != "metadata"}
            plain["metadata"] = to_plain(asdict(lowered.metadata), arrays)
            plain["weights"] = plain_weights(lowered.weights, arrays)
            write_packed(self._path(key), key.text, plain, arrays)
        except (NotStored, OSError, OutputError) as error:
            warnings.warn(f"packed_cache: the model is not kept: {error}", UserWarning, stacklevel=4)

    def _path(self, key: ModelKey) -> Path:
        return self.folder / f"{key.text[:40]}.packed"

    def _content_of_path(self, path: str) -> tuple[str, tuple[str, ...]]:
        """Of a model file and its external data, and which files these are."""
        key = f"path {os.path.abspath(path)}"
        index = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.index"
        try:
            file = PackedFile(index, key)
            file.close()
            known = [FileStamp(*told) for told in file.plan["files"]]
            if all(stamp.is_still_there() for stamp in known):
                return str(file.plan["content"]), tuple(stamp.path for stamp in known)
        except (DamagedFile, LookupError, OSError, TypeError):
            pass
        files = tuple(files_of(path))
        now = time.time_ns()
        stamps = [FileStamp.of(name) for name in files]
        content = content_of_files(files)
        if all(stamp.is_old(now, _SETTLED_NANOSECONDS) for stamp in stamps):
            told = [[s.path, s.size, s.modified, s.changed, s.number] for s in stamps]
            try:
                write_packed(index, key, {"content": content, "files": told}, [])
            except OutputError as error:
                warnings.warn(f"packed_cache: {error}", UserWarning, stacklevel=5)
        return content, files
