"""How masks lie in a model file: beside dense tensors as a metadata entry, or as ONNX ``sparse_initializer``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np
import onnx

from sift_onnx.constants import MaskedConstant, shape_of
from sift_onnx.data_types import data_type_of
from sift_onnx.errors import ModelReadError, UnsupportedError
from sift_onnx.sparse import SparseWeight
from sift_onnx.stored_values import StoredValues

__all__ = ["MASKS_KEY", "mask_records", "sparse_tensor_of", "text_of_masks", "weight_of"]

# Entry of the model's metadata_props that lists the masked weights of dense storage.
MASKS_KEY = "sift_onnx.masks"

# Readers differ in what they accept: onnxruntime takes raw or typed data, graphsurgeon 0.6 typed data only.
_TYPED_FIELD = {"float32": "float_data", "float64": "double_data", "float16": "int32_data"}
_CHUNK = 1 << 16


def text_of_masks(masked: Mapping[str, MaskedConstant]) -> str:
    """The metadata entry: the masked weights of the model, each with its active zeros."""
    return json.dumps({name: constant._values.active_zeros for name, constant in masked.items()})


def mask_records(text: str | None) -> dict[str, str]:
    """The inverse of :func:`text_of_masks`: encoded active zeros by initializer name.

    Raises:
        ModelReadError: the text is damaged.
    """
    if text is None:
        return {}
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelReadError(f"the metadata entry {MASKS_KEY!r} is damaged: {error}") from error
    if not isinstance(records, dict) or not all(isinstance(v, str) for v in records.values()):
        raise ModelReadError(f"the metadata entry {MASKS_KEY!r} is damaged: it is no table of masks")
    return records


def weight_of(tensor: onnx.SparseTensorProto) -> SparseWeight:
    """The masked weight that a sparse tensor holds; zeros that it lists are active.

    Raises:
        ModelReadError: its indices do not fit its shape or its values.
    """
    name, shape = tensor.values.name, tuple(tensor.dims)
    values, indices = StoredValues(tensor.values).view(), StoredValues(tensor.indices).view()
    try:
        if any(n < 0 for n in shape):
            raise ValueError(f"its shape {list(shape)} is negative")
        if indices.dtype.kind not in "iu" or values.dtype.kind == "O":
            raise ValueError(f"indices of type {indices.dtype}, values of type {values.dtype}")
        if indices.ndim == 2:
            if indices.shape[1] != len(shape):
                raise ValueError(f"indices for {indices.shape[1]} axes, a shape of {len(shape)}")
            indices = np.ravel_multi_index(tuple(indices.T), shape) if indices.size else indices[:, 0]
        if np.any(np.diff(indices) < 0):
            order = np.argsort(indices, kind="stable")
            indices, values = indices[order], values[order]
        if indices.size and not 0 <= indices[0] <= indices[-1] < math.prod(shape):
            raise ValueError(f"an index outside of a tensor of shape {list(shape)}")
        return SparseWeight(shape, indices.astype(np.int32 if math.prod(shape) < 2**31 else np.int64), values)
    except ValueError as error:
        raise ModelReadError(f"sparse initializer {name!r} is damaged: {error}") from error


def sparse_tensor_of(constant: MaskedConstant, header: onnx.TensorProto) -> onnx.SparseTensorProto:
    """A masked weight as a sparse tensor, active zeros listed; name and description are those of ``header``.

    Raises:
        UnsupportedError: readers do not take sparse tensors of the weight's data type.
    """
    weight: SparseWeight = constant._values.weight
    field_name = _TYPED_FIELD.get(weight.dtype.name)
    if field_name is None:
        raise UnsupportedError(
            f"initializer {constant.name!r}: sparse storage of {weight.dtype.name} is not supported; "
            "use --storage dense"
        )
    tensor = onnx.SparseTensorProto(dims=shape_of(constant))
    tensor.values.CopyFrom(header)
    tensor.values.data_type = data_type_of(weight.dtype)
    del tensor.values.dims[:]
    tensor.values.dims.append(weight.nnz)
    tensor.indices.data_type = onnx.TensorProto.INT64
    tensor.indices.dims.append(weight.nnz)
    stored = weight.values.view(np.uint16) if weight.dtype == np.float16 else weight.values
    for i in range(0, weight.nnz, _CHUNK):
        getattr(tensor.values, field_name).extend(stored[i : i + _CHUNK].tolist())
        tensor.indices.int64_data.extend(weight.indices[i : i + _CHUNK].tolist())
    return tensor
