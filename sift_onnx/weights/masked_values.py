"""Lazy masked weights: drawn, or read from a file, when they are used."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
from onnx_graphsurgeon.ir.tensor import LazyValues

from sift_onnx.files.stored_values import StoredValues, count_nonzeros
from sift_onnx.files.tensor_protos import tensor_of
from sift_onnx.weights.packed_mask import PackedMask
from sift_onnx.weights.sparse import SparseWeight, decode_positions, index_dtype

__all__ = [
    "DenseUnderMask",
    "MaskedValues",
    "WeightSource",
]

Array = npt.NDArray[Any]


class WeightSource(Protocol):
    """A lazy masked weight: the weights of all layers together may not fit into memory.

    Each read gives the same weight.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the dense tensor."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values."""

    @property
    def nnz(self) -> int:
        """Number of active weights, known without the weight."""

    @property
    def nonzeros(self) -> int:
        """Number of active weights that are not zero; reads the values where the number is not known."""

    def read(self) -> SparseWeight:
        """The weight, as a new array."""


class DenseUnderMask:
    """A weight that is stored as a dense tensor, and its mask apart from it.

    Attributes:
        stored: the dense tensor.
        mask: the mask, none of whose zeros the tensor has anything else at; or None for the non-zeros of the tensor and
            ``active_zeros``.
        active_zeros: encoded positions, see :func:`~sift_onnx.weights.sparse.encode_positions`; may be empty.
    """

    def __init__(
        self,
        stored: StoredValues,
        mask: PackedMask | None = None,
        active_zeros: str = "",
        nonzeros: int | None = None,
    ) -> None:
        """A mask over ``stored``; ``nonzeros`` says how many of its values are not zero, where that is known.

        Raises:
            ValueError: the list of active zeros is damaged.
        """
        self.stored = stored
        self.mask = mask
        self.active_zeros = active_zeros
        self.shape = tuple(int(n) for n in stored.shape)
        self.dtype: np.dtype[Any] = stored.dtype
        self._nonzeros = nonzeros
        self._zeros()

    def _zeros(self) -> npt.NDArray[np.int64]:
        size = math.prod(self.shape)
        return decode_positions(self.active_zeros, size) if self.active_zeros else np.zeros(0, np.int64)

    @cached_property
    def nnz(self) -> int:
        """Number of active weights; without explicit bits, the tensor is read to count them."""
        return sum(len(positions) for positions, _ in self._active()) if self.mask is None else self.mask.nnz

    @property
    def nonzeros(self) -> int:
        """Number of active weights that are not zero: outside of the mask, all are."""
        if self._nonzeros is None:
            self._nonzeros = count_nonzeros(self.stored.flat_pieces())
        return self._nonzeros

    def explicit_mask(self) -> PackedMask | None:
        """The mask; None if it is exactly the non-zeros of the tensor."""
        if self.mask is not None or not self.active_zeros:
            return self.mask
        nonzeros = PackedMask.of_non_zeros(self.shape, self.stored.flat_pieces())
        return nonzeros.joined(PackedMask.of_positions(self.shape, self._zeros()))

    def read(self) -> SparseWeight:
        """The active weights."""
        parts = list(self._active())
        dtype = index_dtype(math.prod(self.shape))
        indices = np.concatenate([positions.astype(dtype) for positions, _ in parts] or [np.zeros(0, dtype)])
        return SparseWeight(self.shape, indices, np.concatenate([v for _, v in parts] or [np.zeros(0, self.dtype)]))

    def _active(self) -> Iterator[tuple[npt.NDArray[np.int64], Array]]:
        """Flat positions of active weights, and their values, piece by piece."""
        zeros, start = self._zeros(), 0
        for piece in self.stored.flat_pieces():
            if self.mask is not None:
                positions = self.mask.positions(start, start + piece.size) - start
            else:
                active = piece != 0
                first, last = np.searchsorted(zeros, (start, start + piece.size))
                active[zeros[first:last] - start] = True
                positions = np.flatnonzero(active)
            yield positions + start, piece[positions]
            start += piece.size


class MaskedValues(LazyValues):  # type: ignore[misc]  # graphsurgeon has no type information
    """The values of a masked weight, as a :class:`SparseWeight` or where one comes from."""

    def __init__(self, source: SparseWeight | WeightSource) -> None:
        """Values under a mask; a lazy ``source`` is read again once the weight that it gave last has been freed."""
        self.source = source
        self.shape = list(source.shape)
        self.dtype = source.dtype
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        self._read: weakref.ref[SparseWeight] | None = None

    @property
    def weight(self) -> SparseWeight:
        """The weight with its mask."""
        if isinstance(self.source, SparseWeight):
            return self.source
        weight = self._read() if self._read is not None else None
        if weight is None:
            weight = self.source.read()
            self._read = weakref.ref(weight)
        return weight

    @property
    def nnz(self) -> int:
        """Number of active weights."""
        return self.source.nnz

    @property
    def nonzeros(self) -> int:
        """Number of active weights that are not zero."""
        return self.source.nonzeros

    @property
    def stored(self) -> StoredValues | None:
        """The dense tensor, where the weight is stored as one."""
        return self.source.stored if isinstance(self.source, DenseUnderMask) else None

    @property
    def tensor(self) -> onnx.TensorProto:
        """The dense tensor, as graphsurgeon's exporter expects it."""
        return tensor_of(self.load()) if self.stored is None else self.stored.tensor

    def load(self) -> Array:
        """The dense tensor as an array."""
        return self.weight.to_dense() if self.stored is None else self.stored.load()
