"""Packed weights as arrays of a file: entries of each row, their columns in two bytes where these do, values.

Of int8 layers, an entry is a quad that is not all zero, and its value the four bytes. Weights of products in fewer bits
are stored in as many, with their scales.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.lowered_model import LayerWeights, RegionWeights
from sift_onnx.backends.cpu.packed.plain_values import NotStored

__all__ = ["made_weights", "plain_weights"]

Array = npt.NDArray[Any]

_SHORT = 1 << 16
# Rows, channels, height and width of the kernel, groups; of floats there are rows and columns.
_SIZES_OF_QUADS = 5


def plain_weights(weights: Sequence[RegionWeights], arrays: list[Array]) -> Any:
    """Weights of each part as plain values; their arrays are appended to ``arrays``.

    Raises:
        NotStored: they are of another form.
    """
    parts = []
    for part in weights:
        listed = []
        for index, matrix in part.items():
            sizes: tuple[int, ...]
            values: Array
            others: list[Array] = []
            how = None
            if isinstance(matrix, _kernels.QuadWeights):
                sizes, counts, columns, values = matrix.stored()
            elif isinstance(matrix, _kernels.SparseWeights):
                sizes = (matrix.rows, matrix.columns)
                counts, columns, values = matrix.stored()
            elif isinstance(matrix, _kernels.PackedRows):
                sizes = (matrix.rows, matrix.columns)
                counts, columns, numbers, scales, group = matrix.stored()
                values, others = _in_few_bits(numbers, matrix.values), [scales]
                how = [matrix.values, group]
            else:
                raise NotStored(f"{type(matrix).__name__} has no stored form")
            if columns.max(initial=0) < _SHORT:
                columns = columns.astype(np.uint16)
            listed.append([index, list(sizes), len(arrays), how])
            arrays += [counts, columns, values, *others]
        parts.append(listed)
    return parts


def made_weights(plain: Any, array: Callable[[int], Array], threads: int, isa: str) -> tuple[RegionWeights, ...]:
    """The weights of each part, several read at once, packed for kernels of an instruction set.

    Raises:
        TypeError, ValueError: what is stored is no weights.
    """

    def made(entry: Any) -> tuple[int, LayerWeights]:
        index, sizes, first, how = entry
        stored = [array(first + i) for i in range(3)]
        if how is not None:
            values, group = how
            stored[2] = _as_floats(stored[2], values)
            scales = np.ascontiguousarray(array(first + 3), np.float32)
            weights = _kernels.SparseWeights.from_rows(*sizes, *stored)
            return index, _kernels.PackedRows(weights, values, scales if scales.size else None, group, isa=isa)
        if len(sizes) == _SIZES_OF_QUADS:
            return index, _kernels.QuadWeights.from_rows(*sizes, *stored)
        return index, _kernels.SparseWeights.from_rows(*sizes, *stored)

    with ThreadPoolExecutor(threads) as pool:
        return tuple(dict(pool.map(made, part)) for part in plain)


# Of numbers that have one in numpy.
_TYPES: Mapping[str, npt.DTypeLike] = {"float32": np.float32, "float16": np.float16, "int8": np.int8}


def _in_few_bits(numbers: Array, values: str) -> Array:
    """Numbers that the type holds, in its bits."""
    if values == "bfloat16":
        return (numbers.view(np.uint32) >> 16).astype(np.uint16)
    return numbers.astype(_TYPES[values])


def _as_floats(stored: Array, values: str) -> Array:
    """The reverse; a KeyError for an unknown type."""
    if values == "bfloat16":
        return (np.ascontiguousarray(stored, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(stored, _TYPES[values]).astype(np.float32)
