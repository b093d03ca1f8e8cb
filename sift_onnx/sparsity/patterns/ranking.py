"""Scores of weights: which of them are the largest, with ties that every machine breaks alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["FORBIDDEN", "comparable", "largest"]

# The score of a weight that must not be active.
FORBIDDEN = -np.inf


def comparable(scores: npt.NDArray[Any], allowed: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    """Scores as finite floats, NaN below all others, and :data:`FORBIDDEN` where a weight must not be active.

    Args:
        scores: one per weight, of any shape and type.
        allowed: flat positions of the weights that may be active; all of them if None.
    """
    dtype = np.float64 if scores.dtype in (np.float64, np.int32, np.int64) else np.float32
    limit = float(np.finfo(np.float32).max)
    flat = scores.reshape(-1).astype(dtype)
    flat[np.isnan(flat)] = -limit
    np.clip(flat, -limit, limit, out=flat)
    if allowed is not None:
        masked = np.full_like(flat, FORBIDDEN)
        masked[allowed] = flat[allowed]
        flat = masked
    return flat.reshape(scores.shape)


def largest(values: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    """Indices of the ``count`` largest of a vector, ascending; of equal values those that come first.

    Raises:
        ValueError: ``count`` is negative or above the length.
    """
    if not 0 <= count <= values.size:
        raise ValueError(f"cannot choose {count} of {values.size}")
    if count == 0:
        return np.empty(0, dtype=np.int64)
    smallest = np.partition(values, values.size - count)[values.size - count]
    chosen = values > smallest
    ties = np.flatnonzero(values == smallest)
    chosen[ties[: count - int(np.count_nonzero(chosen))]] = True
    return np.flatnonzero(chosen)
