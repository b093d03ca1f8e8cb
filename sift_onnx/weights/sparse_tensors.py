"""Masked weights as ONNX sparse tensors: read, whole or where they lie, and made."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.errors import ModelReadError, UnsupportedError
from sift_onnx.files.data_types import data_type_of
from sift_onnx.files.stored_values import StoredValues
from sift_onnx.weights.masked_values import MaskedConstant, count_nonzeros, flat_pieces
from sift_onnx.weights.sparse import SparseWeight, index_dtype

__all__ = ["SparseTensor", "sparse_header_of", "sparse_tensor_of", "typed_field", "weight_of"]

# Readers differ in what they accept: onnxruntime takes raw or typed data, graphsurgeon 0.6 typed data only. Types of 16
# bits lie in a field of integers.
_TYPED_FIELD = {"float32": "float_data", "float64": "double_data", "float16": "int32_data", "bfloat16": "int32_data"}
_CHUNK = 1 << 16
# Bytes of indices that are looked at together.
_LOOKED_AT = 1 << 23
# A few bytes can declare a tensor of any size, and whoever wants it dense asks for that much memory: beyond so many
# bytes, one element in so many has to be there.
_LARGE = 1 << 28
_EMPTIEST = 10_000
# Of the oldest numpy that is supported.
_MOST_AXES = 32


class SparseTensor:
    """A sparse tensor as it is stored; a :class:`~sift_onnx.weights.masked_values.WeightSource`.

    Attributes:
        shape: of the dense tensor.
        dtype: of the values.
        nnz: number of entries; zeros that are listed are active.
    """

    def __init__(self, tensor: onnx.SparseTensorProto, values: StoredValues, indices: StoredValues) -> None:
        """A tensor whose data is not looked at.

        Args:
            tensor: what is stored.
            values: of its active weights.
            indices: where they are: flat positions, or a row of positions along the axes for each.

        Raises:
            ModelReadError: the sizes and types of its parts do not fit one another.
        """
        self.name = tensor.values.name
        self.shape = tuple(int(n) for n in tensor.dims)
        self.dtype: np.dtype[Any] = values.dtype
        self._values, self._indices = values, indices
        self.nnz = math.prod(values.shape)
        if any(n < 0 for n in self.shape):
            raise self._damaged(f"its shape {list(self.shape)} is negative")
        if len(self.shape) > _MOST_AXES:
            raise self._damaged(f"{len(self.shape)} axes")
        # An array without elements, too, has strides that must fit into an address.
        if math.prod(max(n, 1) for n in self.shape) * self.dtype.itemsize > sys.maxsize:
            raise self._damaged(f"no array has the shape {list(self.shape)}")
        if math.prod(self.shape) * self.dtype.itemsize > _LARGE and math.prod(self.shape) > _EMPTIEST * self.nnz:
            raise self._damaged(f"{self.nnz} entries in a tensor of shape {list(self.shape)}")
        if indices.dtype.kind not in "iu" or values.dtype.kind == "O":
            raise self._damaged(f"indices of type {indices.dtype}, values of type {values.dtype}")
        if len(values.shape) != 1 or list(indices.shape[:1]) != list(values.shape) or len(indices.shape) > 2:
            raise self._damaged(f"values of shape {list(values.shape)}, indices of shape {list(indices.shape)}")
        if len(indices.shape) == 2 and indices.shape[1] != len(self.shape):
            raise self._damaged(f"indices for {indices.shape[1]} axes, a shape of {len(self.shape)}")

    @property
    def nonzeros(self) -> int:
        """Number of entries that are not zero."""
        return count_nonzeros(flat_pieces(self._values))

    def is_in_order(self) -> bool:
        """Whether the indices are flat positions in the tensor, each behind the one before; read piece by piece.

        Raises:
            ModelReadError: there are more of them or fewer than there should be.
        """
        if len(self._indices.shape) != 1:
            return False
        last = -1
        for piece in self._indices.pieces(_LOOKED_AT) if self._indices.is_raw else [self._indices.view()]:
            indices = piece.view(self._indices.dtype)
            if indices.size and (indices[0] <= last or np.any(indices[1:] <= indices[:-1])):
                return False
            last = int(indices[-1]) if indices.size else last
        return last < math.prod(self.shape)

    def read(self) -> SparseWeight:
        """The weight.

        Raises:
            ModelReadError: an index lies outside of the tensor, or occurs twice.
        """
        values, indices = self._values.view(), self._indices.view()
        try:
            if indices.ndim == 2:
                indices = np.ravel_multi_index(tuple(indices.T), self.shape) if indices.size else indices[:, 0]
            if np.any(np.diff(indices) < 0):
                order = np.argsort(indices, kind="stable")
                indices, values = indices[order], values[order]
            if indices.size and not 0 <= indices[0] <= indices[-1] < math.prod(self.shape):
                raise ValueError(f"an index outside of a tensor of shape {list(self.shape)}")
            dtype = index_dtype(math.prod(self.shape))
            return SparseWeight(self.shape, indices.astype(dtype), values)
        except ValueError as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, reason: str) -> ModelReadError:
        return ModelReadError(f"sparse initializer {self.name!r} is damaged: {reason}")


def weight_of(tensor: onnx.SparseTensorProto) -> SparseWeight:
    """The masked weight that a sparse tensor holds, its data inside; zeros that it lists are active.

    Raises:
        ModelReadError: its indices do not fit its shape or its values.
    """
    return SparseTensor(tensor, StoredValues(tensor.values), StoredValues(tensor.indices)).read()


def typed_field(name: str, dtype: np.dtype[Any]) -> str:
    """The field of a TensorProto that the values of sparse initializer ``name`` go to.

    Raises:
        UnsupportedError: readers do not take sparse tensors of this type.
    """
    field = _TYPED_FIELD.get(dtype.name)
    if field is None:
        raise UnsupportedError(
            f"initializer {name!r}: sparse storage of {dtype.name} is not supported; use `storage='dense'`"
        )
    return field


def sparse_header_of(constant: MaskedConstant, header: onnx.TensorProto) -> onnx.SparseTensorProto:
    """A masked weight as a sparse tensor without data; name and description are those of ``header``."""
    values = constant._values
    tensor = onnx.SparseTensorProto(dims=values.shape)
    tensor.values.CopyFrom(header)
    tensor.values.data_type = data_type_of(values.dtype)
    del tensor.values.dims[:]
    tensor.values.dims.append(values.nnz)
    tensor.indices.data_type = onnx.TensorProto.INT64
    tensor.indices.dims.append(values.nnz)
    return tensor


def sparse_tensor_of(constant: MaskedConstant, header: onnx.TensorProto) -> onnx.SparseTensorProto:
    """A masked weight as a sparse tensor, active zeros listed; name and description are those of ``header``.

    Raises:
        UnsupportedError: readers do not take sparse tensors of the weight's data type.
    """
    weight: SparseWeight = constant._values.weight
    field = typed_field(constant.name, weight.dtype)
    tensor = sparse_header_of(constant, header)
    stored: npt.NDArray[Any] = weight.values.view(np.uint16) if field == "int32_data" else weight.values
    for i in range(0, weight.nnz, _CHUNK):
        getattr(tensor.values, field).extend(stored[i : i + _CHUNK].tolist())
        tensor.indices.int64_data.extend(weight.indices[i : i + _CHUNK].tolist())
    return tensor
