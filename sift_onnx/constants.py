"""What a constant of the graph holds, and how to read it without building what is not needed.

graphsurgeon keeps a constant's values as an array or as ``LazyValues``. Two kinds of lazy values are added:
:class:`~sift_onnx.external_data.ExternalValues`, and :class:`MaskedValues` for weights under a mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.ir.tensor import LazyValues

from sift_onnx.errors import ModelReadError
from sift_onnx.external_data import ExternalValues, bits_per_element
from sift_onnx.sparse import SparseWeight, decode_positions, encode_positions

__all__ = [
    "MaskedConstant",
    "MaskedValues",
    "array_of",
    "byte_chunks",
    "full_tensor",
    "header_of",
    "masked_constant",
    "nbytes_of",
    "nnz_of",
    "shape_of",
    "sparse_weight_of",
]

Array = npt.NDArray[Any]

_CHUNK_BYTES = 1 << 22


class MaskedValues(LazyValues):  # type: ignore[misc]  # graphsurgeon has no type information
    """The values of a masked weight, as a :class:`SparseWeight`.

    Made from a weight, or from a dense tensor and the encoded positions of its active zeros, in which case the dense
    tensor is scanned for its mask when that is first asked for.
    """

    def __init__(self, weight: SparseWeight | None, stored: LazyValues | None = None, active_zeros: str = "") -> None:
        self._weight = weight
        self.stored = stored
        self._active_zeros = active_zeros
        source = weight if weight is not None else stored
        assert source is not None
        self.shape = list(source.shape)
        self.dtype = source.dtype
        self.nbytes = math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def weight(self) -> SparseWeight:
        """The weight with its mask.

        Raises:
            ModelReadError: the list of active zeros that came with a dense tensor is damaged.
        """
        if self._weight is None:
            assert self.stored is not None
            dense = self.stored.load()
            try:
                zeros = decode_positions(self._active_zeros, dense.size) if self._active_zeros else None
            except ValueError as error:
                raise ModelReadError(f"the mask of an initializer of shape {self.shape} is damaged: {error}") from error
            self._weight = SparseWeight.from_dense(dense, zeros)
        return self._weight

    @property
    def active_zeros(self) -> str:
        """The encoded positions of active zeros; empty when there are none."""
        if self._weight is None or self.stored is not None:
            return self._active_zeros
        zeros = self._weight.active_zeros()
        return encode_positions(zeros) if zeros.size else ""

    @property
    def tensor(self) -> onnx.TensorProto:
        """The dense tensor, as graphsurgeon's exporter expects it."""
        if self.stored is not None:
            return self.stored.tensor
        return onnx.numpy_helper.from_array(self.load())

    def load(self) -> Array:
        """The dense tensor as an array."""
        return self.weight.to_dense() if self.stored is None else self.stored.load()


class MaskedConstant(gs.Constant):  # type: ignore[misc]
    """A constant that keeps its mask when its dense values are read or replaced."""

    @property
    def values(self) -> Array:
        """The dense values; built anew at each call."""
        return self._values.load()  # type: ignore[no-any-return]

    @values.setter
    def values(self, values: Any) -> None:
        if isinstance(values, np.ndarray):
            values = MaskedValues(SparseWeight.from_dense(values))
        self._values = values

    def copy(self) -> MaskedConstant:
        """A constant with the same, shared, values."""
        return MaskedConstant(self.name, self._values)


def masked_constant(constant: gs.Constant, values: MaskedValues) -> None:
    """Turn ``constant`` into a masked one in place, so that its consumers see it."""
    constant.__class__ = MaskedConstant
    constant._values = values
    constant._export_dtype = None


def shape_of(constant: gs.Constant) -> tuple[int, ...]:
    """The shape, without loading values."""
    return tuple(int(n) for n in constant._values.shape)


def array_of(constant: gs.Constant) -> Array:
    """The dense values, without keeping a loaded copy in the graph."""
    values = constant._values
    return values.load() if isinstance(values, LazyValues) else values  # type: ignore[no-any-return]


def sparse_weight_of(constant: gs.Constant) -> SparseWeight | None:
    """The masked weight, or None for a constant that has no mask."""
    values = constant._values
    return values.weight if isinstance(values, MaskedValues) else None


def nnz_of(constant: gs.Constant) -> int:
    """Number of active weights under a mask, of non-zeros without one.

    A tensor of nothing but zeros that has no mask counts as dense: a zero-initialised branch is going to be trained.
    """
    weight = sparse_weight_of(constant)
    if weight is not None:
        return weight.nnz
    values = array_of(constant)
    return int(np.count_nonzero(values)) or int(values.size)


def header_of(constant: gs.Constant) -> onnx.TensorProto:
    """Name, dims and data type of the constant as a tensor without data; what else the tensor carried is kept."""
    values = constant._values
    header = onnx.TensorProto()
    if isinstance(values, MaskedValues) and values.stored is not None:
        values = values.stored
    if isinstance(values, ExternalValues):
        source = values.stub
    elif isinstance(values, LazyValues) and not isinstance(values, MaskedValues):
        source = values.tensor
    else:
        data_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(values.dtype))
        source = onnx.TensorProto(data_type=data_type, dims=values.shape)
    header.data_type = source.data_type
    header.dims.extend(source.dims)
    header.doc_string = source.doc_string
    header.metadata_props.extend(source.metadata_props)
    if not header.doc_string:
        header.ClearField("doc_string")
    header.name = constant.name
    return header


def nbytes_of(constant: gs.Constant) -> int:
    """Size of the dense values in bytes."""
    values = constant._values
    if isinstance(values, LazyValues) and not isinstance(values, (ExternalValues, MaskedValues)):
        return len(values.tensor.raw_data) or values.tensor.ByteSize()
    return int(values.nbytes)


def byte_chunks(constant: gs.Constant) -> Iterator[bytes | memoryview] | None:
    """The dense values as little-endian bytes, piece by piece, or None where they only exist as a whole tensor.

    A piece is valid until the next one is asked for.
    """
    values = constant._values
    if isinstance(values, MaskedValues):
        values = values.weight if values.stored is None else values.stored
    if isinstance(values, SparseWeight):
        return _dense_chunks(values)
    if isinstance(values, ExternalValues):
        raw = values.raw()
        return (raw[i : i + _CHUNK_BYTES].data for i in range(0, raw.size, _CHUNK_BYTES))
    if isinstance(values, LazyValues):
        return iter([values.tensor.raw_data]) if values.tensor.raw_data else None
    if values.dtype.kind in "OUS" or values.dtype.itemsize * 8 != bits_of(values.dtype):
        return None
    contiguous = np.ascontiguousarray(values)
    return iter([contiguous.reshape(-1).view(np.uint8).data])


def bits_of(dtype: np.dtype[Any]) -> int:
    """Bits that an element of ``dtype`` takes in an ONNX tensor."""
    return bits_per_element(onnx.helper.np_dtype_to_tensor_dtype(dtype))


def _dense_chunks(weight: SparseWeight) -> Iterator[memoryview]:
    # One buffer is filled again and again: pages that are touched once cost more than the copy itself.
    length = max(1, _CHUNK_BYTES // weight.dtype.itemsize)
    buffer = np.zeros(min(length, weight.size), dtype=weight.dtype)
    edges = np.searchsorted(weight.indices, np.arange(0, weight.size + length, length))
    for i, start in enumerate(range(0, weight.size, length)):
        positions = weight.indices[edges[i] : edges[i + 1]] - start
        buffer[positions] = weight.values[edges[i] : edges[i + 1]]
        yield buffer[: min(length, weight.size - start)].view(np.uint8).data
        buffer[positions] = 0


def full_tensor(constant: gs.Constant) -> onnx.TensorProto:
    """The constant as a tensor with its data inside."""
    values = constant._values
    if isinstance(values, np.ndarray):
        return onnx.numpy_helper.from_array(values, constant.name)
    tensor = onnx.TensorProto()
    tensor.CopyFrom(values.tensor)
    tensor.name = constant.name
    return tensor
