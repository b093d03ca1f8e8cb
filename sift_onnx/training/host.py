"""Numbers that a model computes about its tensors, which no device needs to see.

Chains of Shape, Gather, Concat and the like are run on small numpy arrays in host memory; where a tensor operator takes
such a value as data, it becomes a tensor. Values that a model has as constants come as Python numbers and tuples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sift_onnx.training.tensors import array_from_tensor, tensor_from_array

__all__ = ["Host", "array", "as_tensor", "floats", "ints", "number"]

Host = Any  # int, float, bool, nested tuples of them, a numpy array, or a tensor


def array(value: Host) -> npt.NDArray[Any]:
    """A host value as an array; a tensor is fetched from its device."""
    if isinstance(value, torch.Tensor):
        return array_from_tensor(value)
    if isinstance(value, float):
        return np.asarray(value, dtype=np.float32)  # such constants become numbers, and no others
    return np.asarray(value, dtype=np.int64) if isinstance(value, tuple) and not value else np.asarray(value)


def ints(value: Host) -> list[int]:
    """A host value as a list of integers, whatever its rank."""
    if isinstance(value, int):
        return [value]
    return [int(n) for n in array(value).reshape(-1)]


def floats(value: Host) -> list[float]:
    """A host value as a list of floating-point numbers, whatever its rank."""
    return [float(n) for n in array(value).reshape(-1)]


def number(value: Host) -> Any:
    """A host value of one element as a Python number."""
    return array(value).reshape(-1)[0].item()


def as_tensor(value: Host, anchor: torch.Tensor | None = None) -> torch.Tensor:
    """A host value as a tensor.

    Args:
        value: an array or number.
        anchor: a tensor on the wanted device; None for the CPU.
    """
    tensor = value if isinstance(value, torch.Tensor) else tensor_from_array(np.asarray(value))
    return tensor if anchor is None else tensor.to(anchor.device)
