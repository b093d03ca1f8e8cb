"""Element types that operators are described with."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
import onnx

__all__ = ["DType"]


class DType(Enum):
    """The element type of an operator's operands or its result.

    Of quantized tensors, it is UINT8 within a region: kernels hold int8 as bytes that are 128 higher. What enters or
    leaves a region has the model's type. INT64 is what places of values are.

    Attributes:
        onnx_type: ONNX's number for it.
        numpy: as numpy has it.
        is_bytes: whether it is one of quantized tensors.
        itemsize: bytes of an element.
    """

    FLOAT32 = (onnx.TensorProto.FLOAT, np.dtype(np.float32))
    UINT8 = (onnx.TensorProto.UINT8, np.dtype(np.uint8))
    INT8 = (onnx.TensorProto.INT8, np.dtype(np.int8))
    INT64 = (onnx.TensorProto.INT64, np.dtype(np.int64))

    def __init__(self, onnx_type: int, numpy: np.dtype[Any]) -> None:
        self.onnx_type = onnx_type
        self.numpy = numpy
        self.itemsize = numpy.itemsize
        self.is_bytes = self.itemsize == 1
