"""Element types that operators are described with."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
import onnx

__all__ = ["DType"]


class DType(Enum):
    """The element type of an operator's operands and result.

    Attributes:
        onnx_type: ONNX's number for it.
        numpy: as numpy has it.
    """

    FLOAT32 = (onnx.TensorProto.FLOAT, np.dtype(np.float32))

    def __init__(self, onnx_type: int, numpy: np.dtype[Any]) -> None:
        self.onnx_type = onnx_type
        self.numpy = numpy

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.numpy.itemsize
