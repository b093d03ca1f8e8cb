"""A ModelProto with some of its tensors replaced, and every other byte as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.files.tensor_protos import bare_header
from sift_onnx.model_files.sparse_tensors import sparse_tensor_of
from sift_onnx.weights.mask_storage import MASKS_KEY, MaskRecord, mask_records, record_of, text_of_records
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["patched_proto"]

Array = npt.NDArray[Any]


def patched_proto(model: onnx.ModelProto, values: Mapping[str, Array | SparseWeight]) -> onnx.ModelProto:
    """A copy of ``model`` with other values in some tensors.

    Args:
        model: not changed.
        values: by name of an initializer, or of the output of a Constant node; an array, or a weight with its mask. A
            weight stays where the tensor lies, among the dense or the sparse initializers.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    # A node's value has no mask: sparsity belongs to initializers.
    for name, tensor in _constant_nodes(copy.graph):
        if name in values:
            _fill(tensor, _dense(values[name]))
    stored = {tensor.name: tensor for tensor in copy.graph.initializer}
    records: dict[str, MaskRecord] = {}
    for name, value in values.items():
        if name in stored:
            _fill(stored[name], _dense(value))
            if isinstance(value, SparseWeight):
                records[name] = record_of(value)
    for sparse in copy.graph.sparse_initializer:
        weight = values.get(sparse.values.name)
        if isinstance(weight, SparseWeight):
            sparse.CopyFrom(sparse_tensor_of(weight, bare_header(sparse.values)))
    _note_masks(copy, records)
    return copy


def _dense(value: Array | SparseWeight) -> Array:
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
