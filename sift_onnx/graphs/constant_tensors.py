"""Constants of the graph as tensors of ONNX: whole, as a header without data, and as bytes piece by piece."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.errors import UnsupportedError
from sift_onnx.files.data_types import bits_of, data_type_of
from sift_onnx.files.tensor_protos import bare_header, describe, little_endian, tensor_of
from sift_onnx.graphs.constants import array_of, dtype_of, nbytes_of, shape_of, sparse_weight_of, stored_values_of
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["byte_chunks", "full_tensor", "has_raw_bytes", "header_of", "stub_of"]

_CHUNK_BYTES = 1 << 22
# Of a file, which is read into a buffer of this size.
_READ_BYTES = 1 << 18


def header_of(constant: gs.Constant, known: onnx.TensorProto | None = None) -> onnx.TensorProto:
    """Name, dims and data type of the constant as a tensor without data.

    Args:
        constant: the constant.
        known: the tensor of that name in the original model; its doc string and metadata are kept.
    """
    stored = stored_values_of(constant)
    if stored is not None:
        header = bare_header(stored.proto)
    else:
        header = onnx.TensorProto(data_type=_data_type_of(constant), dims=shape_of(constant))
        if known is not None:
            describe(header, known)
    header.name = constant.name
    return header


def full_tensor(constant: gs.Constant, known: onnx.TensorProto | None = None) -> onnx.TensorProto:
    """The constant as a tensor with its data inside; ``known`` as in :func:`header_of`."""
    stored = stored_values_of(constant)
    if stored is not None:
        tensor = stored.tensor
    else:
        _data_type_of(constant)
        tensor = tensor_of(array_of(constant))
        if known is not None:
            describe(tensor, known)
    tensor.name = constant.name
    return tensor


def stub_of(constant: gs.Constant, large_from: int, known: onnx.TensorProto | None = None) -> onnx.TensorProto:
    """The constant for shape inference: without its data, if these are ``large_from`` bytes or more.

    It is marked as external then, so that no reader takes missing data for zeros. ``known`` as in :func:`header_of`.
    """
    if nbytes_of(constant) < large_from:
        return full_tensor(constant, known)
    header = header_of(constant, known)
    header.data_location = onnx.TensorProto.EXTERNAL
    header.external_data.add(key="location", value="left-out")
    return header


def _data_type_of(constant: gs.Constant) -> int:
    try:
        return data_type_of(dtype_of(constant))
    except UnsupportedError as error:
        raise UnsupportedError(f"initializer {constant.name!r}: {error}") from error


def has_raw_bytes(constant: gs.Constant) -> bool:
    """Whether the values are available as bytes; strings, typed fields and types below a byte are not."""
    stored = stored_values_of(constant)
    if stored is not None:
        return stored.is_raw
    data_type = _data_type_of(constant)
    return data_type != onnx.TensorProto.STRING and bits_of(data_type) % 8 == 0


def byte_chunks(constant: gs.Constant) -> Iterator[memoryview]:
    """The dense values as little-endian bytes, piece by piece; only of a constant that :func:`has_raw_bytes`.

    A piece is valid until the next one is read.
    """
    stored = stored_values_of(constant)
    if stored is not None:
        yield from (piece.data for piece in stored.pieces(_READ_BYTES))
        return
    weight = sparse_weight_of(constant)
    if weight is not None:
        yield from _dense_chunks(weight)
        return
    raw = little_endian(array_of(constant)).reshape(-1).view(np.uint8)
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
