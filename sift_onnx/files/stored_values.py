"""Lazy values of a constant that is stored in a model file or in external data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx_graphsurgeon.ir.tensor import LazyValues

from sift_onnx.errors import ModelReadError, UnsupportedError
from sift_onnx.files.data_types import bits_of, numpy_dtype, type_name
from sift_onnx.files.external_data import RawData
from sift_onnx.files.file_bytes import FileSlice, PackedNumbers
from sift_onnx.files.tensor_protos import bare_header

__all__ = ["StoredValues", "array_pieces", "count_nonzeros", "stored_bytes"]

Array = npt.NDArray[Any]

# Entries of a typed field, and how many elements they hold, where that is not one each.
_ENTRIES = {"COMPLEX64": (2, 1), "COMPLEX128": (2, 1), "INT4": (1, 2), "UINT4": (1, 2), "FLOAT4E2M1": (1, 2)}
_ENTRIES |= {"INT2": (1, 4), "UINT2": (1, 4)}

# Elements that are read at a time; a multiple of 8, since masks are packed into bytes.
_PIECE = 1 << 20
# Of the oldest numpy that is supported.
_MOST_AXES = 32


class StoredValues(LazyValues):  # type: ignore[misc]  # graphsurgeon has no type information
    """The values of a tensor as it is stored: in a TensorProto, or as raw data elsewhere."""

    def __init__(self, proto: onnx.TensorProto, raw: RawData | None = None) -> None:
        """Values of ``proto``, which is not changed; ``raw`` reads its data where the message does not hold it.

        Raises:
            ModelReadError: the tensor has more or less data than its shape and type call for.
        """
        self.proto = proto
        self.shape = list(proto.dims)
        self.nbytes = stored_bytes(proto)
        self.dtype = numpy_dtype(proto.data_type)
        self._raw = raw
        if raw is None:
            _check_data(proto, self.nbytes)

    @property
    def is_raw(self) -> bool:
        """Whether the data are bytes, not numbers in a typed field."""
        inside = self.proto.HasField("raw_data") and self.proto.data_type != onnx.TensorProto.STRING
        return self._raw is not None or inside

    def raw(self) -> npt.NDArray[np.uint8]:
        """The little-endian bytes, read-only; only where the data :attr:`is_raw`."""
        raw = self._raw() if self._raw is not None else np.frombuffer(self.proto.raw_data, np.uint8)
        raw.flags.writeable = False
        return raw

    def pieces(self, nbytes: int) -> Iterator[npt.NDArray[np.uint8]]:
        """Like :meth:`raw`, ``nbytes`` or fewer at a time; a piece is valid until the next one is read."""
        if isinstance(self._raw, (FileSlice, PackedNumbers)):
            yield from self._raw.pieces(nbytes)
            return
        raw = self.raw()
        for i in range(0, raw.size, nbytes):
            yield raw[i : i + nbytes]

    @property
    def tensor(self) -> onnx.TensorProto:
        """A copy of the tensor with its data inside, as graphsurgeon's exporter expects it (which renames it)."""
        tensor = bare_header(self.proto)
        if self._raw is None:
            tensor.CopyFrom(self.proto)
        else:
            tensor.raw_data = self._raw().tobytes()
        return tensor

    @property
    def _is_plain(self) -> bool:
        """Whether no two elements share a byte."""
        return bits_of(self.proto.data_type) % 8 == 0

    def flat_pieces(self) -> Iterator[Array]:
        """The values in row-major order, some megabytes at a time.

        Each piece but the last has a multiple of 8 elements. A piece is valid until the next one is read.
        """
        if self.is_raw and self._is_plain:
            little = self.dtype.newbyteorder("<")
            yield from (piece.view(little) for piece in self.pieces(_PIECE * self.dtype.itemsize))
        else:
            yield from array_pieces(self.view())

    def view(self) -> Array:
        """The values as an array of the tensor's shape, read-only and not copied where that is possible."""
        if self.is_raw and self._is_plain:
            array: Array = self.raw().view(self.dtype)
            # Callers may pass it to code that requires aligned memory.
            return (array if array.flags.aligned else array.copy()).reshape(self.shape)
        decoded: Array = onnx.numpy_helper.to_array(self.tensor if self._raw is not None else self.proto)
        return decoded.astype(self.dtype, copy=False)

    def load(self) -> Array:
        """The values as a new array, as lazy values of graphsurgeon return them."""
        if isinstance(self._raw, FileSlice) and self._is_plain:
            # A new array already.
            return self._raw().view(self.dtype).reshape(self.shape)
        return np.array(self.view())


def array_pieces(array: Array) -> Iterator[Array]:
    """The elements of an array in row-major order, as vectors like those of :meth:`StoredValues.flat_pieces`."""
    flat = array.reshape(-1)
    yield from (flat[i : i + _PIECE] for i in range(0, flat.size, _PIECE))


def count_nonzeros(pieces: Iterable[Array]) -> int:
    """Number of elements in all pieces that are not zero."""
    return sum(int(np.count_nonzero(piece)) for piece in pieces)


def stored_bytes(tensor: onnx.TensorProto) -> int:
    """Size of a tensor's values as raw data; of strings, the size of the strings.

    Raises:
        ModelReadError: its dims are negative.
        UnsupportedError: its data type is unknown, or it is a part of an array.
    """
    numpy_dtype(tensor.data_type)
    if any(n < 0 for n in tensor.dims):
        raise ModelReadError(f"initializer {tensor.name!r}: its shape {list(tensor.dims)} is negative")
    if len(tensor.dims) > _MOST_AXES:
        raise UnsupportedError(f"initializer {tensor.name!r} has {len(tensor.dims)} axes; numpy takes {_MOST_AXES}")
    if tensor.HasField("segment"):
        raise UnsupportedError(f"initializer {tensor.name!r} is a segment of a tensor; store it whole")
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    return -(-math.prod(tensor.dims) * bits_of(tensor.data_type) // 8)


def _check_data(tensor: onnx.TensorProto, nbytes: int) -> None:
    count = math.prod(tensor.dims)
    if tensor.HasField("raw_data") and tensor.data_type != onnx.TensorProto.STRING:
        wanted, found = nbytes, len(tensor.raw_data)
    else:
        entries, elements = _ENTRIES.get(type_name(tensor.data_type), (1, 1))
        wanted = -(-count * entries // elements)
        found = len(getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type)))
    if wanted != found:
        raise ModelReadError(
            f"initializer {tensor.name!r}: its data has {found} bytes or elements where its shape {list(tensor.dims)} "
            f"and type {type_name(tensor.data_type)} call for {wanted}"
        )
