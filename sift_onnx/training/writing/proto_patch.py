"""A ModelProto with some of its tensors replaced, and every other byte as it was."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.files.tensor_protos import bare_header
from sift_onnx.graphs.sparsity_notes import note_sparsity
from sift_onnx.model_files.sparse_tensors import sparse_tensor_of
from sift_onnx.weights.mask_storage import MASKS_KEY, MaskRecord, mask_records, record_of, text_of_records
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["NewValue", "dense_values", "patched_proto"]

Array = npt.NDArray[Any]

# What replaces a tensor: an array, or a weight under its mask.
NewValue = Array | SparseWeight


def patched_proto(model: onnx.ModelProto, values: Mapping[str, NewValue]) -> onnx.ModelProto:
    """A copy of ``model`` with other values in some tensors.

    Args:
        model: not changed.
        values: by name of an initializer, or of the output of a Constant node; an array, or a weight with its mask. A
            weight stays where the tensor lies, among the dense or the sparse initializers.
    """
    copy = deepcopy(model)
    # A node's value has no mask: sparsity belongs to initializers.
    for name, tensor in _constant_nodes(copy.graph):
        if name in values:
            _fill(tensor, dense_values(values[name]))
    stored = {tensor.name: tensor for tensor in copy.graph.initializer}
    records: dict[str, MaskRecord] = {}
    for name, value in values.items():
        if name in stored:
            _fill(stored[name], dense_values(value))
            if isinstance(value, SparseWeight):
                records[name] = record_of(value)
    for sparse in copy.graph.sparse_initializer:
        weight = values.get(sparse.values.name)
        if isinstance(weight, SparseWeight):
            sparse.CopyFrom(sparse_tensor_of(weight, bare_header(sparse.values)))
    _note_masks(copy, records)
    note_sparsity(copy.graph, _masked_weights(copy))
    return copy


def dense_values(value: NewValue) -> Array:
    """The array, or the weight without its mask."""
    return value.to_dense() if isinstance(value, SparseWeight) else value


def _constant_nodes(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    for node in graph.node:
        if node.op_type == "Constant":
            yield from ((node.output[0], attribute.t) for attribute in node.attribute if attribute.name == "value")


def _fill(tensor: onnx.TensorProto, array: Array) -> None:
    """Replace the data of a tensor, in the field where it has been."""
    if tensor.HasField("raw_data"):
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<") if array.dtype.byteorder == ">" else None)
        tensor.raw_data = little.tobytes()
        return
    field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    # 16-bit floats lie in a field of integers, as their bits.
    numbers = array.reshape(-1).view(np.uint16) if array.dtype.itemsize == 2 else array.reshape(-1)
    tensor.ClearField(field)
    getattr(tensor, field).extend(numbers.tolist())


def _note_masks(model: onnx.ModelProto, found: Mapping[str, MaskRecord]) -> None:
    if not found:
        return
    entry = next((entry for entry in model.metadata_props if entry.key == MASKS_KEY), None)
    records = mask_records(entry.value if entry is not None else None)
    text = text_of_records({**records, **found})
    if entry is None:
        model.metadata_props.add(key=MASKS_KEY, value=text)
    elif records != {**records, **found}:
        entry.value = text


def _masked_weights(model: onnx.ModelProto) -> dict[str, MaskRecord]:
    """The shape and the number of active weights of each masked weight, in either storage."""
    entry = next((entry.value for entry in model.metadata_props if entry.key == MASKS_KEY), None)
    sparse = model.graph.sparse_initializer
    return mask_records(entry) | {
        tensor.values.name: MaskRecord(tuple(tensor.dims), math.prod(tensor.values.dims)) for tensor in sparse
    }
