"""A file of plain values and arrays, that is trusted no further than its checksums and sizes go.

Layout: ``MAGIC``, the format's number and the size of the head (32 bits each, little endian), the SHA-256 of the head,
the head as msgpack, then the arrays, each at a multiple of 64 bytes. The head says of each array its element type,
sizes, place and CRC-32. Nothing in it is code, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sift_onnx.files.atomic import atomic_file

__all__ = ["DamagedFile", "PackedFile", "write_packed"]

Array = npt.NDArray[Any]

MAGIC = b"sift packed\n\0"
_FORMAT = 1
_FIXED = struct.Struct(f"<{len(MAGIC)}sII32s")
_ALIGNMENT = 64
_KINDS = frozenset("bifu")


class DamagedFile(Exception):  # noqa: N818 - an answer: what it was made from is there
    """A file that is not what it should be; the message says in what."""


def write_packed(path: Path, key: str, plan: Any, arrays: Sequence[Array]) -> None:
    """Write a file that replaces ``path`` once it is whole.

    Args:
        path: of the file.
        key: what it was made from; it is refused for anything else.
        plan: plain values: None, numbers, texts, bytes, lists and dictionaries.
        arrays: of numbers or truth values.

    Raises:
        OutputError: it cannot be written.
    """
    stored = [np.ascontiguousarray(array) for array in arrays]
    listed, end = [], 0
    for array in stored:
        listed.append([array.dtype.str, list(array.shape), end, zlib.crc32(_bytes_of(array))])
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    head = msgspec.msgpack.encode({"key": key, "plan": plan, "arrays": listed, "nbytes": end})
    with atomic_file(path) as file:
        file.write(_FIXED.pack(MAGIC, _FORMAT, len(head), hashlib.sha256(head).digest()))
        file.write(head)
        file.write(bytes(_begin(len(head)) - _FIXED.size - len(head)))
        for array in stored:
            file.write(_bytes_of(array))
            file.write(bytes(-array.nbytes % _ALIGNMENT))


class PackedFile:
    """An open file; several threads may read arrays from it at once.

    Attributes:
        plan: the plain values.
    """

    def __init__(self, path: Path, key: str) -> None:
        """Open a file and read its head.

        Raises:
            FileNotFoundError: there is none.
            DamagedFile: it is not whole, belongs to another user, or was made from something else.
        """
        # A link, or a pipe, is nothing that write_packed leaves.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        try:
            self._file = open(os.open(path, flags), "rb", buffering=0)  # noqa: SIM115 - closed by close()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DamagedFile(error.strerror or str(error)) from error
        try:
            with _as_damage():
                self._read_head(key)
        except BaseException:
            self.close()
            raise

    def _read_head(self, key: str) -> None:
        found = os.fstat(self._file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise DamagedFile("it is no file")
        fixed = self._file.read(_FIXED.size)
        if len(fixed) < _FIXED.size:
            raise DamagedFile("it is cut short")
        magic, number, size, digest = _FIXED.unpack(fixed)
        if magic != MAGIC or number != _FORMAT:
            raise DamagedFile("it is of another format")
        if size > found.st_size:
            raise DamagedFile("it is cut short")
        head = self._file.read(size)
        if len(head) != size or hashlib.sha256(head).digest() != digest:
            raise DamagedFile("its head is damaged")
        try:
            told = msgspec.msgpack.decode(head)
            self.plan, self._arrays = told["plan"], told["arrays"]
            self._begin = _begin(size)
            if told["key"] != key:
                raise DamagedFile("it was made from something else")
            if found.st_size != self._begin + told["nbytes"]:
                raise DamagedFile("it is cut short, or longer than it should be")
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFile(f"its head is damaged: {error}") from error

    def array(self, index: int) -> Array:
        """A copy of one of the arrays.

        Raises:
            DamagedFile: it is not as it was written, or cannot be read.
        """
        with _as_damage():
            return self._read_array(index)

    def _read_array(self, index: int) -> Array:
        try:
            text, sizes, place, checksum = self._arrays[index]
            dtype = np.dtype(text)
            if dtype.kind not in _KINDS or place < 0 or any(size < 0 for size in sizes):
                raise DamagedFile(f"array {index} is of no type that is stored")
            nbytes = math.prod(sizes) * dtype.itemsize
            found = os.fstat(self._file.fileno()).st_size
            if nbytes > found - self._begin - place:
                raise DamagedFile(f"array {index} lies outside of it")
            array = np.empty(sizes, dtype)
        except (IndexError, TypeError, ValueError) as error:
            raise DamagedFile(f"array {index}: {error}") from error
        view = _bytes_of(array)
        done = 0
        while done < nbytes:
            count = _read_at(self._file.fileno(), view[done:], self._begin + place + done)
            if not count:
                raise DamagedFile("it is cut short")
            done += count
        if zlib.crc32(view) != checksum:
            raise DamagedFile(f"array {index} is damaged")
        return array

    def close(self) -> None:
        """Close the file; what was read stays."""
        self._file.close()


@contextmanager
def _as_damage() -> Iterator[None]:
    """Errors of the system, as of a network file that another process has replaced, as :class:`DamagedFile`."""
    try:
        yield
    except OSError as error:
        raise DamagedFile(error.strerror or str(error)) from error


def _begin(head: int) -> int:
    """Where arrays begin behind a head of this size."""
    return -(-(_FIXED.size + head) // _ALIGNMENT) * _ALIGNMENT


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _read_at(descriptor: int, view: memoryview, place: int) -> int:
    return os.preadv(descriptor, [view], place)
