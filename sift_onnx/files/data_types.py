"""ONNX data types and the numpy dtypes that stand for them.

onnx before 1.19 reads bfloat16 and the 8-bit floats as float32; here each data type has its own dtype, so that a
tensor is written as it was read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from sift_onnx.errors import UnsupportedError

__all__ = ["CONSTANT_NUMBERS", "bits_of", "data_type_of", "is_float", "numpy_dtype", "type_name"]

# Name in ONNX: name in numpy or ml_dtypes, bits per element in a file.
_TYPES = {
    "FLOAT": ("float32", 32),
    "DOUBLE": ("float64", 64),
    "FLOAT16": ("float16", 16),
    "INT8": ("int8", 8),
    "INT16": ("int16", 16),
    "INT32": ("int32", 32),
    "INT64": ("int64", 64),
    "UINT8": ("uint8", 8),
    "UINT16": ("uint16", 16),
    "UINT32": ("uint32", 32),
    "UINT64": ("uint64", 64),
    "BOOL": ("bool", 8),
    "COMPLEX64": ("complex64", 64),
    "COMPLEX128": ("complex128", 128),
    "BFLOAT16": ("bfloat16", 16),
    "FLOAT8E4M3FN": ("float8_e4m3fn", 8),
    "FLOAT8E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "FLOAT8E5M2": ("float8_e5m2", 8),
    "FLOAT8E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "FLOAT8E8M0": ("float8_e8m0fnu", 8),
    "FLOAT6E2M3": ("float6_e2m3fn", 6),
    "FLOAT6E3M2": ("float6_e3m2fn", 6),
    "FLOAT4E2M1": ("float4_e2m1fn", 4),
    "INT4": ("int4", 4),
    "UINT4": ("uint4", 4),
    "INT2": ("int2", 2),
    "UINT2": ("uint2", 2),
}
_ONNX_NAMES = {numpy_name: onnx_name for onnx_name, (numpy_name, _) in _TYPES.items()}

# Attributes by which a Constant node holds numbers, and their types.
CONSTANT_NUMBERS = {
    **dict.fromkeys(("value_int", "value_ints"), np.int64),
    **dict.fromkeys(("value_float", "value_floats"), np.float32),
}


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is of floating point; numpy's kind does not say so of those that ml_dtypes adds."""
    return dtype.name.startswith(("float", "bfloat"))


def type_name(data_type: int) -> str:
    """The name of a data type, or its number where it has none."""
    try:
        return str(onnx.TensorProto.DataType.Name(data_type))
    except ValueError:
        return f"number {data_type}"


def numpy_dtype(data_type: int) -> np.dtype[Any]:
    """The dtype of an ONNX data type; ``object`` for strings.

    Raises:
        UnsupportedError: neither numpy nor ml_dtypes has the type.
    """
    name = type_name(data_type)
    if name == "STRING":
        return np.dtype(object)
    numpy_name = _TYPES.get(name, ("", 0))[0]
    try:
        return np.dtype(numpy_name) if numpy_name else _unknown(name)
    except TypeError:
        import ml_dtypes

        found = getattr(ml_dtypes, numpy_name, None)
        return np.dtype(found) if found is not None else _unknown(name)


def _unknown(name: str) -> np.dtype[Any]:
    raise UnsupportedError(f"tensors of data type {name} are not supported")


def data_type_of(dtype: np.dtype[Any]) -> int:
    """The inverse of :func:`numpy_dtype`; any array of strings or objects is of type STRING.

    Raises:
        UnsupportedError: ONNX has no such type.
    """
    name = "STRING" if dtype.kind in "OUST" else _ONNX_NAMES.get(dtype.name)
    if name is None or name not in onnx.TensorProto.DataType.keys():  # noqa: SIM118  # an enum, not a mapping
        raise UnsupportedError(f"ONNX has no tensors of dtype {dtype.name}")
    return int(onnx.TensorProto.DataType.Value(name))


def bits_of(data_type: int) -> int:
    """Bits that one element takes in ``raw_data``; 0 for strings, which cannot be stored there."""
    return _TYPES.get(type_name(data_type), ("", 0))[1]
