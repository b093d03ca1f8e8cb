"""Masked weights written as sparse initializers, piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.files.tensor_protos import little_endian
from sift_onnx.files.wire import key, padded_varints, varint, varint_bytes
from sift_onnx.graphs.constant_tensors import header_of
from sift_onnx.graphs.constants import MaskedConstant, dtype_of, shape_of
from sift_onnx.model_files.sparse_tensors import sparse_header_of, typed_field
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["LargeSparseTensor"]

_CHUNK = 1 << 19
_VALUES = onnx.SparseTensorProto.DESCRIPTOR.fields_by_name["values"].number
_INDICES = onnx.SparseTensorProto.DESCRIPTOR.fields_by_name["indices"].number
# Bytes of a 16-bit float as a varint.
_HALF_BYTES = varint_bytes(2**16 - 1)


@dataclass(frozen=True)
class LargeSparseTensor:
    """A masked constant that is written piece by piece; a lazy weight is drawn or read for that, and freed afterwards.

    In the model file, all varints of a field are padded to one length, so that the size is known before the weight is
    read.

    Attributes:
        constant: its values.
        known: the tensor of that name in the original model, if it had one.
    """

    constant: MaskedConstant
    known: onnx.TensorProto | None = None

    @cached_property
    def _header(self) -> onnx.SparseTensorProto:
        return sparse_header_of(header_of(self.constant, self.known), shape_of(self.constant), self.constant.nnz)

    @cached_property
    def _field(self) -> str:
        return typed_field(self.constant.name, dtype_of(self.constant))

    @property
    def _value_bytes(self) -> int:
        return _HALF_BYTES if self._field == "int32_data" else dtype_of(self.constant).itemsize

    @cached_property
    def _index_bytes(self) -> int:
        return varint_bytes(max(0, math.prod(shape_of(self.constant)) - 1))

    @property
    def nbytes(self) -> int:
        """Size of the values and their indices outside of the file."""
        return self.constant.nnz * (dtype_of(self.constant).itemsize + 8)

    def load(self) -> SparseWeight:
        """The weight; while it is held, :meth:`pieces` and :meth:`data` do not read it again."""
        return self.constant.weight

    @cached_property
    def _fronts(self) -> tuple[bytes, bytes, bytes]:
        """The bytes before the values, before the indices, and after them."""
        nnz, header = self.constant.nnz, self._header
        numbers = onnx.TensorProto.DESCRIPTOR.fields_by_name
        parts: list[bytes] = []
        for field, tensor, name, size in (
            (_VALUES, header.values, self._field, self._value_bytes),
            (_INDICES, header.indices, "int64_data", self._index_bytes),
        ):
            front = tensor.SerializeToString(deterministic=True) + key(numbers[name].number) + varint(nnz * size)
            parts.append(key(field) + varint(len(front) + nnz * size) + front)
        return parts[0], parts[1], onnx.SparseTensorProto(dims=header.dims).SerializeToString()

    def size(self) -> int:
        """Length of the serialized tensor in bytes."""
        return sum(map(len, self._fronts)) + self.constant.nnz * (self._value_bytes + self._index_bytes)

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The serialized tensor, piece by piece."""
        weight = self.load()
        before_values, before_indices, end = self._fronts
        yield before_values
        for values in _chunks(weight.values):
            is_half = self._field == "int32_data"
            yield _bytes(padded_varints(values.view(np.uint16), _HALF_BYTES) if is_half else values)
        yield before_indices
        for indices in _chunks(weight.indices):
            yield _bytes(padded_varints(indices, self._index_bytes))
        yield end

    def stub(self) -> onnx.SparseTensorProto:
        """A new tensor without data, to which the caller adds where the data is."""
        return deepcopy(self._header)

    def data(self) -> Iterator[tuple[str, int, Iterator[memoryview]]]:
        """The parts of the tensor that have data, its size in bytes, and the bytes as external data has them."""
        weight = self.load()
        yield "values", weight.values.nbytes, (_bytes(values) for values in _chunks(weight.values))
        yield "indices", 8 * weight.nnz, (_bytes(indices.astype(np.int64)) for indices in _chunks(weight.indices))


def _chunks(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    yield from (array[i : i + _CHUNK] for i in range(0, array.size, _CHUNK))


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    return little_endian(array).reshape(-1).view(np.uint8).data
