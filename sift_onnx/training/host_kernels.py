"""Operators on host values: the functions of :mod:`sift_onnx.shapes.numpy_ops`, and those that read tensors' shapes.

An operator that is not here, or any of whose inputs is a tensor, is run by a kernel of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sift_onnx.operators.registry import Registry
from sift_onnx.shapes.numpy_ops import KERNELS
from sift_onnx.training.host import Host, array

__all__ = ["HOST_KERNELS", "shape"]

Array = npt.NDArray[Any]


def shape(x: Any, start: int = 0, end: int | None = None) -> Array:
    """Sizes of a tensor's axes, those from ``start`` to ``end``."""
    return np.array(tuple(x.shape)[start:end], dtype=np.int64)


def size(x: Any) -> Array:
    return np.array(x.numel() if isinstance(x, torch.Tensor) else x.size, dtype=np.int64)


def _of_host_values(kernel: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(kernel)
    def run(*inputs: Host, **attributes: Any) -> Any:
        return kernel(*(None if value is None else array(value) for value in inputs), **attributes)

    return run


HOST_KERNELS: Registry[Callable[..., Any]] = Registry("a host kernel")
HOST_KERNELS.add_table({op: _of_host_values(kernel) for op, kernel in KERNELS.items()})
HOST_KERNELS.add_table({"Shape": shape, "Size": size})
