"""Parts of files that are read when they are used.

They are not mapped into memory: pages of a mapping that were touched count towards the memory of the process, and a
process that touches a page past the end of a file that was truncated meanwhile is killed by SIGBUS.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sift_onnx.errors import ModelReadError
from sift_onnx.files.page_memory import page_array
from sift_onnx.files.wire import unpacked_varints

__all__ = ["FileBytes", "FileSlice", "PackedNumbers"]

Bytes = npt.NDArray[np.uint8]


class FileBytes:
    """A file that is expected to stay as it is.

    Attributes:
        path: of the file.
        size: in bytes.
    """

    def __init__(self, path: Path, keep_open: bool = True) -> None:
        """Open ``path``.

        Args:
            path: of the file.
            keep_open: an open file stays readable when it is removed or replaced, but costs a file descriptor.

        Raises:
            OSError: it cannot be opened.
        """
        self.path = path
        file = open(path, "rb", buffering=0)  # noqa: SIM115  # as long as this object lives
        self._state = _state(file.fileno())
        self.size = self._state[1]
        self._file = file if keep_open else None
        if keep_open:
            # An open file that is merely forgotten raises a ResourceWarning, in whatever code runs by then.
            weakref.finalize(self, file.close)
        else:
            file.close()

    def map(self) -> mmap.mmap:
        """The whole file, for a look at a few pages of it.

        Raises:
            OSError: it cannot be mapped, or is not open.
            ValueError: it is empty.
        """
        if self._file is None:
            raise OSError("not kept open")
        return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    def read_into(self, start: int, buffer: Bytes) -> None:
        """Fill ``buffer`` with the bytes from ``start`` on.

        Raises:
            OSError: they cannot be read, or the file has changed since it was opened.
        """
        if self._file is not None:
            self._fill(self._file.fileno(), start, buffer)
            return
        with open(self.path, "rb", buffering=0) as file:
            self._fill(file.fileno(), start, buffer)

    def _fill(self, descriptor: int, start: int, buffer: Bytes) -> None:
        state = _state(descriptor)
        if state != self._state:
            change = "truncated" if state[1] < self.size else "changed"
            raise OSError(f"it was {change} after the model was loaded; load it again")
        done = 0
        while done < buffer.size:
            # By offset, since forked processes share the position of a descriptor.
            count = os.preadv(descriptor, [buffer[done:].data], start + done)
            if not count:
                raise OSError("it ends too early")
            done += count


def _state(descriptor: int) -> tuple[int, int, int, int]:
    status = os.fstat(descriptor)
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


@dataclass(frozen=True)
class FileSlice:
    """A part of a file.

    Attributes:
        file: that it is part of.
        start: its first byte.
        nbytes: its length.
        failure: what an error says first; the reason follows.
    """

    file: FileBytes
    start: int
    nbytes: int
    failure: str

    def __len__(self) -> int:
        return self.nbytes

    def __call__(self) -> Bytes:
        """All of it, as a new array.

        Raises:
            ModelReadError: it cannot be read.
        """
        whole = page_array(self.nbytes)
        self._read(0, whole)
        return whole

    def pieces(self, nbytes: int) -> Iterator[Bytes]:
        """All of it in order, ``nbytes`` at a time; a piece is valid until the next one is read.

        Raises:
            ModelReadError: it cannot be read.
        """
        buffer = np.empty(min(nbytes, self.nbytes), np.uint8)
        for at in range(0, self.nbytes, nbytes):
            piece = buffer[: min(nbytes, self.nbytes - at)]
            self._read(at, piece)
            yield piece

    def _read(self, at: int, buffer: Bytes) -> None:
        try:
            self.file.read_into(self.start + at, buffer)
        except OSError as error:
            raise ModelReadError(f"{self.failure}: {error.strerror or error}") from error


@dataclass(frozen=True)
class PackedNumbers:
    """Packed varints in a file, which are unpacked when they are used.

    Attributes:
        packed: the varints.
        count: how many there are.
        dtype: what they become; bits above it are dropped.
        what: the tensor that they belong to, for errors.
    """

    packed: FileSlice | memoryview
    count: int
    dtype: np.dtype[np.integer]
    what: str

    def __len__(self) -> int:
        return self.count * self.dtype.itemsize

    def __call__(self) -> Bytes:
        """The bytes of all of them, as a new array.

        Raises:
            ModelReadError: they cannot be read, or are damaged.
        """
        # Each takes a byte or more, so that a file cannot claim more memory than a multiple of its size.
        whole = np.empty(min(self.count, len(self.packed)), self.dtype)
        at = 0
        for numbers in self._unpacked(1 << 20):
            whole[at : at + numbers.size] = numbers
            at += numbers.size
        return whole.view(np.uint8)

    def check(self) -> None:
        """Read all of them, to find damage.

        Raises:
            ModelReadError: they cannot be read, or are damaged.
        """
        for _ in self._unpacked(1 << 20):
            pass

    def pieces(self, nbytes: int) -> Iterator[Bytes]:
        """The bytes of all of them in order, ``nbytes``, a multiple of the dtype's, or fewer at a time.

        Raises:
            ModelReadError: they cannot be read, or are damaged.
        """
        for numbers in self._unpacked(max(1, nbytes // self.dtype.itemsize)):
            yield numbers.view(np.uint8)

    def _unpacked(self, nbytes: int) -> Iterator[npt.NDArray[np.integer]]:
        """The numbers, ``nbytes`` of the file at a time; never more in all than :attr:`count`."""
        rest, left = np.zeros(0, np.uint8), self.count
        try:
            for piece in self._packed_pieces(nbytes):
                data = np.concatenate([rest, piece])
                numbers, used = unpacked_varints(data)
                rest, left = data[used:], left - numbers.size
                if left < 0:
                    break
                yield numbers.astype(self.dtype)
        except ValueError as error:
            raise ModelReadError(f"{self.what} is damaged: {error}") from error
        if left or rest.size:
            raise ModelReadError(
                f"{self.what} is damaged: it has not the {self.count} entries that its shape calls for"
            )

    def _packed_pieces(self, nbytes: int) -> Iterator[Bytes]:
        if isinstance(self.packed, FileSlice):
            yield from self.packed.pieces(nbytes)
            return
        for at in range(0, len(self.packed), nbytes):
            yield np.frombuffer(self.packed[at : at + nbytes], np.uint8)
