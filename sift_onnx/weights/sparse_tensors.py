"""Masked weights that are stored as ONNX sparse tensors: checked, and read when they are used."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import onnx

from sift_onnx.errors import ModelReadError
from sift_onnx.files.stored_values import StoredValues, count_nonzeros
from sift_onnx.weights.sparse import SparseWeight, index_dtype

__all__ = ["SparseTensor", "weight_of"]

# Bytes of indices that are checked at a time.
_LOOKED_AT = 1 << 23
# A few bytes can declare a tensor of any size, which takes that much memory once it is dense: in a tensor of more than
# _LARGE bytes, at least one element of _EMPTIEST has to be stored.
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
        return count_nonzeros(self._values.flat_pieces())

    def is_in_order(self) -> bool:
        """Whether the indices are flat positions in the tensor, in ascending order; read piece by piece.

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
            ModelReadError: an index is out of bounds, or occurs twice.
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
