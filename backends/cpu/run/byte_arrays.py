"""Arrays of bytes as sequences of operators take them: as words of four bytes, which pass for floats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.lowering.element_types import DType

__all__ = ["as_words", "empty_bytes"]

Array = npt.NDArray[Any]
_WORD = 4


def as_words(array: Array) -> Array:
    """``array``, or its bytes as words; a copy where they are no whole words, or begin within one."""
    if array.dtype == np.float32 or array.itemsize != 1:
        return array
    flat = array.reshape(-1).view(np.uint8)
    if flat.size % _WORD or flat.ctypes.data % _WORD:
        padded = np.zeros(-(-flat.size // _WORD) * _WORD, np.uint8)
        padded[: flat.size] = flat
        flat = padded
    return flat.view(np.float32)


def empty_bytes(sizes: tuple[int, ...], dtype: DType) -> tuple[Array, Array]:
    """An array of bytes that a sequence is to write, and the words that it has for that."""
    count = math.prod(sizes)
    words = np.empty(-(-count // _WORD), np.float32)
    return words.view(dtype.numpy)[:count].reshape(sizes), words
