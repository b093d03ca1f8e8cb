"""What a constant of the graph holds, and how to read it without building what is not needed.

graphsurgeon keeps a constant's values as an array or as ``LazyValues``. Two kinds of lazy values are added:
:class:`~sift_onnx.files.stored_values.StoredValues` for tensors as they lie in a file, and
:class:`~sift_onnx.weights.masked_values.MaskedValues` for weights under a mask.
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

from sift_onnx.errors import UnsupportedError
from sift_onnx.files.data_types import bits_of, data_type_of
from sift_onnx.files.stored_values import StoredValues, bare_header, describe
from sift_onnx.files.tensor_protos import little_endian, tensor_of
from sift_onnx.graphs.walks import axis_order, origin_of
from sift_onnx.operators.traits import PARAMETER_VIEWS
from sift_onnx.weights.masked_values import (
    MaskedConstant,
    MaskedValues,
    count_nonzeros,
    flat_pieces,
    masked_constant,
)
from sift_onnx.weights.sparse import SparseWeight

__all__ = [
    "MaskedConstant",
    "MaskedValues",
    "active_zeros_of",
    "array_of",
    "byte_chunks",
    "constant_values",
    "full_tensor",
    "has_raw_bytes",
    "header_of",
    "is_masked",
    "masked_constant",
    "nbytes_of",
    "nnz_of",
    "parameter_behind",
    "shape_of",
    "sparse_weight_of",
]

Array = npt.NDArray[Any]

_CHUNK_BYTES = 1 << 22
# Of a file, which is read into a buffer of this size.
_READ_BYTES = 1 << 18


def constant_values(tensor: gs.Tensor) -> gs.Constant | None:
    """The constant behind a tensor: an initializer, or the value of a Constant node."""
    if isinstance(tensor, gs.Constant):
        return tensor
    if len(tensor.inputs) == 1 and tensor.inputs[0].op == "Constant":
        attrs = tensor.inputs[0].attrs
        value = attrs.get("value")
        if isinstance(value, gs.Constant):
            return value
        for key, dtype in (
            ("value_int", np.int64),
            ("value_ints", np.int64),
            ("value_float", np.float32),
            ("value_floats", np.float32),
        ):
            if key in attrs:
                return gs.Constant(tensor.name, np.asarray(attrs[key], dtype=dtype))
    return None


def parameter_behind(tensor: gs.Tensor) -> tuple[gs.Constant, tuple[int, ...]] | None:
    """The floating-point constant that a tensor is, and the permutation of its axes on the way, or None.

    Between the constant and the tensor there may be nodes that copy, cast or transpose it.
    """
    tensor, passed = origin_of(tensor, PARAMETER_VIEWS)
    constant = constant_values(tensor)
    if constant is None or np.dtype(constant._values.dtype).kind in "iub":
        return None
    named = constant if constant.name == tensor.name else gs.Constant(tensor.name, constant._values)
    return named, axis_order(passed, len(shape_of(constant)))


def shape_of(constant: gs.Constant) -> tuple[int, ...]:
    """The shape, without loading values."""
    return tuple(int(n) for n in constant._values.shape)


def array_of(constant: gs.Constant) -> Array:
    """The dense values, to be read only, without keeping a loaded copy in the graph."""
    values = constant._values
    if isinstance(values, MaskedValues) and values.stored is not None:
        values = values.stored
    if isinstance(values, StoredValues):
        return values.view()
    return values.load() if isinstance(values, LazyValues) else values  # type: ignore[no-any-return]


def sparse_weight_of(constant: gs.Constant) -> SparseWeight | None:
    """The masked weight, or None for a constant that has no mask."""
    values = constant._values
    return values.weight if isinstance(values, MaskedValues) else None


def is_masked(constant: gs.Constant) -> bool:
    """Whether the constant is a weight under a mask."""
    return isinstance(constant._values, MaskedValues)


def nnz_of(constant: gs.Constant) -> int:
    """Number of active weights under a mask, of non-zeros without one.

    A tensor of nothing but zeros that has no mask counts as dense: a zero-initialised branch is going to be trained.
    """
    if is_masked(constant):
        return int(constant._values.nnz)
    values = constant._values
    pieces = flat_pieces(values) if isinstance(values, StoredValues) else [array_of(constant)]
    return count_nonzeros(pieces) or math.prod(shape_of(constant))


def active_zeros_of(constant: gs.Constant) -> int:
    """How many of the weights that :func:`nnz_of` counts are zero."""
    values = constant._values
    if is_masked(constant):
        return int(values.nnz - values.nonzeros)
    pieces = flat_pieces(values) if isinstance(values, StoredValues) else [array_of(constant)]
    return 0 if any(np.count_nonzero(piece) for piece in pieces) else math.prod(shape_of(constant))


def header_of(constant: gs.Constant, known: onnx.TensorProto | None = None) -> onnx.TensorProto:
    """Name, dims and data type of the constant as a tensor without data.

    Args:
        constant: the constant.
        known: the tensor that had its place when the model came; its doc string and metadata are kept.
    """
    values = constant._values
    if isinstance(values, MaskedValues) and values.stored is not None:
        values = values.stored
    if isinstance(values, StoredValues):
        header = bare_header(values.proto)
    else:
        header = onnx.TensorProto(data_type=_data_type_of(constant), dims=values.shape)
        if known is not None:
            describe(header, known)
    header.name = constant.name
    return header


def _data_type_of(constant: gs.Constant) -> int:
    try:
        return data_type_of(np.dtype(constant._values.dtype))
    except UnsupportedError as error:
        raise UnsupportedError(f"initializer {constant.name!r}: {error}") from error


def nbytes_of(constant: gs.Constant) -> int:
    """Size of the dense values in bytes."""
    return int(constant._values.nbytes)


def has_raw_bytes(constant: gs.Constant) -> bool:
    """Whether the values can be had as bytes; strings, typed fields and types below a byte cannot."""
    values = constant._values
    if isinstance(values, MaskedValues) and values.stored is not None:
        values = values.stored
    if isinstance(values, StoredValues):
        return values.is_raw
    return _data_type_of(constant) != onnx.TensorProto.STRING and bits_of(_data_type_of(constant)) % 8 == 0


def byte_chunks(constant: gs.Constant) -> Iterator[memoryview]:
    """The dense values as little-endian bytes, piece by piece; only of a constant that :func:`has_raw_bytes`.

    A piece is valid until the next one is asked for.
    """
    values = constant._values
    if isinstance(values, MaskedValues):
        values = values.weight if values.stored is None else values.stored
    if isinstance(values, SparseWeight):
        yield from _dense_chunks(values)
        return
    if isinstance(values, StoredValues):
        yield from (piece.data for piece in values.pieces(_READ_BYTES))
        return
    raw = little_endian(values).reshape(-1).view(np.uint8)
    for i in range(0, raw.size, _CHUNK_BYTES):
        yield raw[i : i + _CHUNK_BYTES].data


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


def full_tensor(constant: gs.Constant, known: onnx.TensorProto | None = None) -> onnx.TensorProto:
    """The constant as a tensor with its data inside; ``known`` as in :func:`header_of`."""
    values = constant._values
    if isinstance(values, LazyValues):
        tensor: onnx.TensorProto = values.tensor
    else:
        _data_type_of(constant)
        tensor = tensor_of(values)
    if known is not None and not isinstance(values, StoredValues):
        describe(tensor, known)
    tensor.name = constant.name
    return tensor
