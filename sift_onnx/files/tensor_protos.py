"""TensorProtos of arrays, in the byte order of ONNX, and headers of TensorProtos."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.files.data_types import bits_of, data_type_of

__all__ = ["bare_header", "describe", "little_endian", "tensor_of"]

Array = npt.NDArray[Any]


def little_endian(values: Array) -> Array:
    """The values as a contiguous array whose bytes are those of ``raw_data``."""
    dtype = values.dtype.newbyteorder("<") if values.dtype.byteorder == ">" else values.dtype
    return np.ascontiguousarray(values, dtype=dtype)


def tensor_of(values: Array) -> onnx.TensorProto:
    """A tensor without a name, its data inside.

    Raises:
        UnsupportedError: ONNX has no tensors of this dtype.
    """
    data_type = data_type_of(values.dtype)
    if bits_of(data_type) % 8 or data_type == onnx.TensorProto.STRING:
        return onnx.numpy_helper.from_array(values.astype(object) if values.dtype.kind in "UST" else values)
    return onnx.TensorProto(data_type=data_type, dims=values.shape, raw_data=little_endian(values).tobytes())


def bare_header(source: onnx.TensorProto) -> onnx.TensorProto:
    """The tensor without its data, and without where that is."""
    header = onnx.TensorProto(name=source.name, data_type=source.data_type, dims=source.dims)
    describe(header, source)
    return header


def describe(header: onnx.TensorProto, source: onnx.TensorProto) -> None:
    """Give ``header`` the doc string and the metadata of ``source``."""
    if source.doc_string:
        header.doc_string = source.doc_string
    # IR version 10, onnx 1.16.
    header.metadata_props.extend(source.metadata_props)
