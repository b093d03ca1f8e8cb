"""The element type of a tensor that the file records none of."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.files.data_types import numpy_dtype
from sift_onnx.graphs.constants import constant_values, dtype_of

__all__ = ["floating_type"]


def floating_type(tensor: gs.Tensor) -> np.dtype[Any]:
    """The floating-point type of a tensor: as recorded, or that of the parameters and casts that it comes from."""
    pending, seen = [tensor], set[int]()
    while pending:
        found = pending.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        constant = constant_values(found)
        dtype = found.dtype if constant is None else dtype_of(constant)
        if isinstance(dtype, int):  # a type that numpy lacks
            dtype = numpy_dtype(dtype)
        if dtype is not None and np.dtype(dtype).kind not in "iubOUS":
            return np.dtype(dtype)
        if constant is None and dtype is None and found.inputs:
            node = found.inputs[0]
            if node.op == "Cast":
                return np.dtype(numpy_dtype(int(node.attrs["to"])))
            pending.extend(reversed(node.inputs))
    return np.dtype(np.float32)
