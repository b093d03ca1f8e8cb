"""Operators between sparse layers, on activations in lanes.

Each takes the kernel of torch whose place it has, so that the graph can be put back. What is not listed ends a region:
a kernel must work element by element, or along features alone, and give finite numbers with finite derivatives where
idle lanes hold finite ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sift_onnx.training.kernels.data_movement import layout
from sift_onnx.training.kernels.elementwise import activation, arithmetic
from sift_onnx.training.sparse_layers.lanes.activations import activate
from sift_onnx.training.sparse_layers.lanes.sums_and_products import combine_elements
from sift_onnx.training.sparse_layers.lanes.tensors import Lanes, combined

__all__ = [
    "BINARY", "ELEMENTWISE", "average", "combine", "elementwise", "kernel_of", "name_of", "with_vector",
]  # fmt: skip

Run = Callable[..., Any]

# By the names that calls in a graph give: its code cannot hold functions as arguments.
_KERNELS: dict[str, Run] = {
    "relu": activation.relu, "leaky_relu": activation.leaky_relu, "elu": activation.elu,
    "hard_sigmoid": activation.hard_sigmoid, "hard_swish": activation.hard_swish, "gelu": activation.gelu,
    "swish": activation.swish, "softplus": activation.softplus, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "softsign": functional.softsign, "mish": functional.mish, "erf": torch.erf, "neg": torch.neg, "abs": torch.abs,
    "clip": arithmetic.clip, "identity": layout.identity,
    "add": arithmetic.add, "sub": arithmetic.sub, "mul": arithmetic.mul,
    "div": arithmetic.div,
}  # fmt: skip
_NAMES = {run: name for name, run in _KERNELS.items()}
BINARY: frozenset[Run] = frozenset({arithmetic.add, arithmetic.sub, arithmetic.mul, arithmetic.div})
ELEMENTWISE: frozenset[Run] = frozenset(_KERNELS.values()) - BINARY


def name_of(run: Run | str) -> str:
    """The name by which a call has a kernel."""
    assert not isinstance(run, str)
    return _NAMES[run]


def kernel_of(name: str) -> Run:
    """The kernel of a name."""
    return _KERNELS[name]


def elementwise(kernel: str, x: Lanes, *args: Any, attributes: Mapping[str, Any]) -> Lanes:
    """A function of each element; ``args`` are numbers."""
    return activate(kernel, _KERNELS[kernel], x, *args, **attributes)


def combine(kernel: str, a: Lanes | Tensor, b: Lanes | Tensor) -> Lanes:
    """A function of two elements; one of them may come as torch has it."""

    def run(first: Tensor, second: Tensor) -> Tensor:
        found = combine_elements(kernel, first, second)
        return _KERNELS[kernel](first, second) if found is None else found

    return combined(run, a, b)


def with_vector(kernel: str, x: Lanes, vector: Tensor, *, is_first: bool) -> Lanes:
    """A function of each element and its channel's number, or one number; ``is_first``: the number comes first."""
    run, numbers = _KERNELS[kernel], vector.reshape(1, -1, 1, 1, 1)
    return x.with_data(run(numbers, x.data) if is_first else run(x.data, numbers))


def average(x: Lanes) -> Lanes:
    """Mean over the spatial axes of images."""
    return x.map(torch.mean, (2, 3), keepdim=True)
