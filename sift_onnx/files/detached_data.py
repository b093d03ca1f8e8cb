"""Tensor data that is not in the parsed message: external data, and data that was cut out of the model file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError

from sift_onnx.errors import ModelReadError
from sift_onnx.files.external_data import DataFiles, RawData, external_tensors, is_external
from sift_onnx.files.file_bytes import FileSlice, PackedNumbers
from sift_onnx.files.stored_values import stored_bytes
from sift_onnx.files.wire import DataLocation, packed_field

__all__ = ["CutOutData", "DetachedData", "locate_data", "refuse_external"]

# The field of a sparse tensor that is left in the file, and the dtype of its numbers, by data type.
_SPARSE_DATA: dict[int, tuple[str, np.dtype[Any]]] = {
    onnx.TensorProto.FLOAT: ("float_data", np.dtype("<f4")),
    onnx.TensorProto.DOUBLE: ("double_data", np.dtype("<f8")),
    onnx.TensorProto.FLOAT16: ("int32_data", np.dtype("<u2")),
    onnx.TensorProto.BFLOAT16: ("int32_data", np.dtype("<u2")),
    onnx.TensorProto.INT64: ("int64_data", np.dtype("<i8")),
}

# What was cut out of a serialized model, see :func:`~sift_onnx.files.wire.cut_out_data`.
CutOutData = Mapping[DataLocation, "memoryview | FileSlice"]
# Tensors without data by id(), and what reads their data. The tensor is kept alive, so that its id is not reused.
DetachedData = dict[int, tuple[onnx.TensorProto, RawData]]


def locate_data(model: onnx.ModelProto, files: DataFiles | None, cut: CutOutData) -> DetachedData:
    """Find the data of every tensor that does not hold it itself.

    Args:
        model: gets the data of tensors that no node reads, and of those that are not initializers.
        files: where external data is looked for; None for a model that is not from a file.
        cut: data that was cut out of ``model``.

    Returns:
        The data of the other initializers, which are marked as external.

    Raises:
        ModelReadError: data is missing or out of bounds, or there is nowhere to look.
    """
    read = {id(tensor): tensor for tensor in _read_initializers(model.graph)}
    found: list[tuple[onnx.TensorProto, RawData]] = []
    for tensor in external_tensors(model):
        if files is None:
            refuse_external(tensor.name)
        if tensor.data_type == onnx.TensorProto.STRING:
            raise ModelReadError(f"initializer {tensor.name!r}: strings cannot lie outside the model file")
        found.append((tensor, files.find(tensor, stored_bytes(tensor))))
    for location, raw in cut.items():
        if location.part:
            sparse = model.graph.sparse_initializer[location.position]
            tensor = getattr(sparse, location.part)
            unpacked = _unpacked(sparse, tensor, location, raw) if id(tensor) in read else None
            if unpacked is None:
                _put_back(tensor, location, raw)
            else:
                found.append((tensor, unpacked))
            continue
        tensor = model.graph.initializer[location.position]
        if len(raw) != stored_bytes(tensor):
            raise ModelReadError(
                f"initializer {tensor.name!r}: {len(raw)} bytes do not fit its shape {list(tensor.dims)}, "
                f"which takes {stored_bytes(tensor)}"
            )
        found.append((tensor, _bytes_of(raw)))
    data: DetachedData = {}
    for tensor, bytes_of in found:
        if id(tensor) in read:
            data[id(tensor)] = tensor, bytes_of
            tensor.data_location = onnx.TensorProto.EXTERNAL
        else:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = bytes_of().tobytes()
    return data


def _bytes_of(raw: memoryview | FileSlice) -> RawData:
    return raw if isinstance(raw, FileSlice) else partial(_as_bytes, raw)


def _as_bytes(raw: memoryview) -> npt.NDArray[np.uint8]:
    return np.frombuffer(raw, np.uint8)


def _put_back(tensor: onnx.TensorProto, location: DataLocation, raw: memoryview | FileSlice) -> None:
    try:
        tensor.MergeFromString(packed_field(location.field, bytes(_bytes_of(raw)())))
    except DecodeError as error:
        raise ModelReadError(
            f"the data of sparse initializer {location.position} ({location.part}) is damaged"
        ) from error


def _unpacked(
    sparse: onnx.SparseTensorProto, tensor: onnx.TensorProto, location: DataLocation, raw: memoryview | FileSlice
) -> RawData | None:
    """What reads the bytes of a part of a sparse tensor whose typed field was cut out.

    None where the field is not all of its data, or not of a type that readers take in sparse tensors; the data is then
    put back, and parsed by protobuf.
    """
    known = _SPARSE_DATA.get(tensor.data_type)
    has_more = any(field.name.endswith("_data") or field.name == "external_data" for field, _ in tensor.ListFields())
    if known is None or tensor.DESCRIPTOR.fields_by_name[known[0]].number != location.field:
        return None
    if has_more or is_external(tensor) or any(n < 0 for n in tensor.dims):
        return None
    count, packed_as = stored_bytes(tensor) // known[1].itemsize, known[1]
    if known[0] in ("float_data", "double_data"):
        return _bytes_of(raw) if len(raw) == count * packed_as.itemsize else None
    return PackedNumbers(raw, count, packed_as, f"sparse initializer {sparse.values.name!r}")


def _read_initializers(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Initializers of the graph and its subgraphs that nodes read, and the parts of sparse ones."""
    names = set(_names_read(graph))
    yield from (tensor for tensor in graph.initializer if tensor.name in names)
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices) if sparse.values.name in names else ()
    for subgraph in _subgraphs(graph):
        yield from _read_initializers(subgraph)


def _names_read(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from node.input
    yield from (info.name for info in graph.output)
    for subgraph in _subgraphs(graph):
        yield from _names_read(subgraph)


def _subgraphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    return (attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g"))


def refuse_external(name: str) -> NoReturn:
    """Refuse to read an initializer whose data is not available.

    Raises:
        ModelReadError: in any case.
    """
    raise ModelReadError(f"initializer {name!r}: its data is external; pass the model's path, or load the data first")
