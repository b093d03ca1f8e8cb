"""Between numpy arrays, with ONNX's data types, and torch tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sift_onnx.errors import UnsupportedError
from sift_onnx.files.data_types import numpy_dtype, type_name

__all__ = ["HALF_TYPES", "array_from_tensor", "tensor_from_array", "torch_dtype"]

HALF_TYPES = (torch.float16, torch.bfloat16)

# Types that numpy has from ml_dtypes, which torch does not read: they are handed over as integers of their size.
_BITS = {
    "bfloat16": (np.int16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "float8_e4m3fnuz": (np.uint8, torch.float8_e4m3fnuz),
    "float8_e5m2": (np.uint8, torch.float8_e5m2),
    "float8_e5m2fnuz": (np.uint8, torch.float8_e5m2fnuz),
}
_INTEGERS = {1: torch.uint8, 2: torch.int16}
_NATIVE = (
    *("float16", "float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128"),
)


def torch_dtype(data_type: int | np.dtype[Any] | type[Any]) -> torch.dtype:
    """The torch dtype of an ONNX data type, given as its number or as the numpy dtype that stands for it.

    Raises:
        UnsupportedError: torch has no such type (strings, types below a byte).
    """
    name = numpy_dtype(data_type).name if isinstance(data_type, int) else np.dtype(data_type).name
    if name in _BITS:
        return _BITS[name][1]
    if name in _NATIVE:
        found: torch.dtype = getattr(torch, name)
        return found
    shown = type_name(data_type) if isinstance(data_type, int) else name
    raise UnsupportedError(f"torch has no tensors of data type {shown}")


def tensor_from_array(array: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor with a copy of the array's values.

    Raises:
        UnsupportedError: torch has no such type.
    """
    dtype = torch_dtype(array.dtype)
    owned = np.array(array, order="C", dtype=array.dtype.newbyteorder("=") if array.dtype.byteorder == ">" else None)
    if array.dtype.name in _BITS:
        return torch.from_numpy(owned.view(_BITS[array.dtype.name][0])).view(dtype).reshape(array.shape)
    return torch.from_numpy(owned)


def array_from_tensor(tensor: torch.Tensor, dtype: np.dtype[Any] | None = None) -> npt.NDArray[Any]:
    """An array with the tensor's values, rounded to ``dtype`` if that is given.

    Raises:
        UnsupportedError: ONNX has no such type.
    """
    found = tensor.detach().cpu().contiguous()
    if found.dtype in _INTEGERS.values() or str(found.dtype).removeprefix("torch.") in _NATIVE:
        array: npt.NDArray[Any] = found.numpy()
    else:
        target = next((numpy_name for numpy_name, (_, known) in _BITS.items() if known == found.dtype), None)
        if target is None:
            raise UnsupportedError(f"ONNX has no tensors of {found.dtype}")
        import ml_dtypes

        array = found.view(_INTEGERS[found.itemsize]).numpy().view(np.dtype(getattr(ml_dtypes, target)))
    return array if dtype is None or dtype == array.dtype else array.astype(dtype)
