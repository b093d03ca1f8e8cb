"""Packed weights as arrays of a file: entries of each row, their columns in two bytes where these do, values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.lowered_model import RegionWeights
from sift_onnx.backends.cpu.packed.plain_values import NotStored

__all__ = ["made_weights", "plain_weights"]

Array = npt.NDArray[Any]

_SHORT = 1 << 16


def plain_weights(weights: Sequence[RegionWeights], arrays: list[Array]) -> Any:
    """Weights of each part as plain values; their arrays are appended to ``arrays``.

    Raises:
        NotStored: they are of another form.
    """
    parts = []
    for part in weights:
        listed = []
        for index, matrix in part.items():
            if not isinstance(matrix, _kernels.SparseWeights):
                raise NotStored(f"{type(matrix).__name__} has no stored form")
            counts, columns, values = matrix.stored()
            if matrix.columns <= _SHORT:
                columns = columns.astype(np.uint16)
            listed.append([index, matrix.rows, matrix.columns, len(arrays)])
            arrays += [counts, columns, values]
        parts.append(listed)
    return parts


def made_weights(plain: Any, array: Callable[[int], Array], threads: int) -> tuple[RegionWeights, ...]:
    """The weights of each part, several read at once.

    Raises:
        TypeError, ValueError: what is stored is no weights.
    """

    def made(entry: Any) -> tuple[int, _kernels.SparseWeights]:
        index, rows, columns, first = entry
        counts, entry_columns, values = (array(first + i) for i in range(3))
        return index, _kernels.SparseWeights.from_rows(rows, columns, counts, entry_columns, values)

    with ThreadPoolExecutor(threads) as pool:
        return tuple(dict(pool.map(made, part)) for part in plain)
