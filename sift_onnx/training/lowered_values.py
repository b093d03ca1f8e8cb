"""What a tensor of the ONNX graph is while the graph is lowered, and how parts of a node are read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from torch import fx

from sift_onnx.files.data_types import data_type_of
from sift_onnx.graphs.constants import array_of, dtype_of, shape_of

__all__ = ["Host", "Shaped", "Stored", "attribute_of", "literal"]

# Larger constants are data, and computed with on the tensors' device.
_HOST_INTEGERS, _HOST_FLOATS = 1 << 14, 16


@dataclass(frozen=True)
class Stored:
    """A constant of the graph.

    Attributes:
        constant: what it holds.
        path: where the module keeps it, if it is a parameter or a statistic.
    """

    constant: gs.Constant
    path: str | None = None

    def is_host(self) -> bool:
        """Whether it may be one of the numbers that are computed on the host."""
        kind = dtype_of(self.constant).kind
        limit = _HOST_INTEGERS if kind in "iub" else _HOST_FLOATS
        return self.path is None and kind in "iubf" and math.prod(shape_of(self.constant)) <= limit


@dataclass(frozen=True)
class Host:
    """Numbers in host memory, which ``node`` computes when the module runs."""

    node: fx.Node


@dataclass(frozen=True)
class Shaped:
    """Stands for a tensor whose shape alone is asked for."""

    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def attribute_of(name: str, value: Any) -> Any:
    """An attribute as kernels take it: lists as tuples, data types as numbers, a fill value with its data type."""
    if isinstance(value, gs.Constant) and name == "value":
        array = array_of(value).reshape(-1)
        return array[0].item(), data_type_of(array.dtype)
    if isinstance(value, (type, np.dtype)):
        return data_type_of(np.dtype(value))
    return tuple(value) if isinstance(value, (list, tuple)) else value


def literal(numbers: Any) -> Any:
    """Nested lists as nested tuples."""
    return tuple(literal(n) for n in numbers) if isinstance(numbers, list) else numbers
