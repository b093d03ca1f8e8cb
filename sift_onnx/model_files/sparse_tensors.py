"""Masked weights as ONNX sparse tensors, to be written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.errors import UnsupportedError
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["sparse_header_of", "sparse_tensor_of", "typed_field"]

# Readers differ in what they accept: onnxruntime takes raw or typed data, graphsurgeon 0.6 typed data only. Types of 16
# bits lie in a field of integers.
_TYPED_FIELD = {"float32": "float_data", "float64": "double_data", "float16": "int32_data", "bfloat16": "int32_data"}
_CHUNK = 1 << 16


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


def sparse_header_of(header: onnx.TensorProto, shape: Sequence[int], nnz: int) -> onnx.SparseTensorProto:
    """A sparse tensor without data.

    Args:
        header: gives its name, data type and description.
        shape: of the dense tensor.
        nnz: number of its entries.
    """
    tensor = onnx.SparseTensorProto(dims=shape)
    tensor.values.CopyFrom(header)
    del tensor.values.dims[:]
    tensor.values.dims.append(nnz)
    tensor.indices.data_type = onnx.TensorProto.INT64
    tensor.indices.dims.append(nnz)
    return tensor


def sparse_tensor_of(weight: SparseWeight, header: onnx.TensorProto) -> onnx.SparseTensorProto:
    """A masked weight as a sparse tensor, active zeros listed; ``header`` as in :func:`sparse_header_of`.

    Raises:
        UnsupportedError: readers do not take sparse tensors of the weight's data type.
    """
    field = typed_field(header.name, weight.dtype)
    tensor = sparse_header_of(header, weight.shape, weight.nnz)
    stored: npt.NDArray[Any] = weight.values.view(np.uint16) if field == "int32_data" else weight.values
    for i in range(0, weight.nnz, _CHUNK):
        getattr(tensor.values, field).extend(stored[i : i + _CHUNK].tolist())
        tensor.indices.int64_data.extend(weight.indices[i : i + _CHUNK].tolist())
    return tensor
