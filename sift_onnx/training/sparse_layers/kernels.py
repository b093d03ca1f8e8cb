"""Kernels of the CPU back end, as layers of torch call them."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.run.pool import ThreadPool, pool_of

__all__ = [
    "CPU", "DepthwiseKernels", "Geometry", "LayerKernels", "ProductKernels", "Window", "channel_sums", "empty", "pool",
    "runs_on_kernels",
]  # fmt: skip

# Kernels take the memory of tensors of torch as well, which their types do not say.
CPU: Any = _kernels

Shape = tuple[int, int, int, int]

_pools: dict[int, ThreadPool] = {}
# Activations and their gradients have the same sizes in each step. Fresh pages, which the system clears one by one,
# would take longer than some kernels do to write them.
_arrays = CPU.ArrayPool()
_LARGE = 1 << 16  # floats


def pool() -> ThreadPool:
    """The threads that all layers share: as many as torch's, and those of sessions with as many."""
    threads = min(torch.get_num_threads(), os.cpu_count() or 1)
    if threads not in _pools:
        _pools.clear()
        _pools[threads] = pool_of(threads)
    return _pools[threads]


def empty(*sizes: int) -> Tensor:
    """A new tensor of float32, of any values; a large one where tensors of earlier steps lay."""
    if math.prod(sizes) < _LARGE:
        return torch.empty(sizes)
    return torch.from_numpy(_arrays.empty(sizes))


@dataclass(frozen=True)
class Window:
    """That of a convolution or a pooling, ``(height, width)``. A product of matrices is 1x1.

    Pads are top, left, bottom, right.
    """

    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)


@dataclass(frozen=True)
class Geometry(Window):
    """A convolution's window and its groups of channels."""

    groups: int = 1


class LayerKernels(Protocol):
    """Forward pass and gradients of a layer; tensors are in lanes."""

    def output_shape(self, shape: Shape) -> Shape:
        """Shape of the output for an input's."""

    def take(self, values: Tensor) -> None:
        """Compute with these values of the weights from now on."""

    def take_again(self, values: Tensor) -> None:
        """Compute with the values of an earlier call, which the backward pass has kept, if others came between."""

    def forward(self, shape: Shape, x: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's output."""

    def input_gradient(self, shape: Shape, dy: Tensor) -> Tensor:
        """The gradient of ``x``."""

    def weight_gradient(self, shape: Shape, x: Tensor, dy: Tensor, count: int) -> Tensor:
        """The gradients of the ``count`` values; idle lanes of ``dy`` are zero."""


class ProductKernels:
    """Forward pass and gradients of a layer with one mask and one geometry; tensors are in lanes."""

    def __init__(self, rows: int, columns: int, indices: Tensor, places: Tensor | None, geometry: Geometry) -> None:
        """Kernels for weights at ``indices``.

        Args:
            rows: output features.
            columns: weights of one of them.
            indices: of the active weights, flat and ascending.
            places: position of each in the vector of values; None: as ``indices``.
            geometry: of the convolution.
        """
        self._product = CPU.TrainableConv(rows, columns, indices, places, **asdict(geometry))
        self._weight_gradient: Any = None
        self._taken: tuple[int, int] | None = None

    def output_shape(self, shape: Shape) -> Shape:
        """Shape of the output for an input's."""
        n, c, h, w = self._product.output_shape(shape)
        return n, c, h, w

    def take(self, values: Tensor) -> None:
        """Copy the values. Neither their version nor their address tells that they are those of the last call.

        Optimizers and averaged weights are written to ``.data``, which leaves the version as it was, and other values
        may get the memory of some that are gone.
        """
        self._product.update(values.detach().contiguous())
        self._taken = values.data_ptr(), values._version

    def take_again(self, values: Tensor) -> None:
        """Copy the values of an earlier call, which the backward pass has kept, if others came between."""
        if self._taken != (values.data_ptr(), values._version):
            self.take(values)

    def forward(self, shape: Shape, x: Tensor, bias: Tensor | None) -> Tensor:
        """The product, and the bias."""
        _, c, h, w = self.output_shape(shape)
        out = empty(x.shape[0], c, h, w, x.shape[4])
        self._product.forward(pool().kernels, shape, x.detach(), out, None if bias is None else bias.detach())
        return out

    def input_gradient(self, shape: Shape, dy: Tensor) -> Tensor:
        """The gradient of ``x``."""
        dx = empty(dy.shape[0], *shape[1:], dy.shape[4])
        self._product.input_gradient(pool().kernels, shape, dy, dx)
        return dx

    def weight_gradient(self, shape: Shape, x: Tensor, dy: Tensor, count: int) -> Tensor:
        """The gradients of the ``count`` values; idle lanes of ``dy`` are zero."""
        if self._weight_gradient is None:
            self._weight_gradient = self._product.weight_gradient()
        gradient = torch.empty(count)
        self._weight_gradient.run(pool().kernels, shape, x, dy, gradient)
        return gradient


class DepthwiseKernels:
    """Forward pass and gradients of a convolution with a group for each input channel, of dense weights."""

    def __init__(self, rows: int, geometry: Geometry) -> None:
        """Kernels of a convolution of so many output channels."""
        self._conv = CPU.DepthwiseConv(rows, **asdict(geometry))
        self._values = torch.empty(0)

    def output_shape(self, shape: Shape) -> Shape:
        """Shape of the output for an input's."""
        n, c, h, w = self._conv.output_shape(shape)
        return n, c, h, w

    def take(self, values: Tensor) -> None:
        """Compute with these values of the weights from now on."""
        self._values = values.detach().contiguous()

    take_again = take

    def forward(self, shape: Shape, x: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution, and the bias."""
        _, c, h, w = self.output_shape(shape)
        out = empty(x.shape[0], c, h, w, x.shape[4])
        numbers = None if bias is None else bias.detach()
        self._conv.forward(pool().kernels, shape, x.detach(), self._values, out, numbers)
        return out

    def input_gradient(self, shape: Shape, dy: Tensor) -> Tensor:
        """The gradient of ``x``."""
        dx = empty(dy.shape[0], *shape[1:], dy.shape[4])
        self._conv.input_gradient(pool().kernels, shape, dy, self._values, dx)
        return dx

    def weight_gradient(self, shape: Shape, x: Tensor, dy: Tensor, count: int) -> Tensor:
        """The gradients of the ``count`` weights; idle lanes of ``dy`` are zero."""
        gradient = torch.empty(count)
        self._conv.weight_gradient(pool().kernels, shape, x, dy, gradient)
        return gradient


def channel_sums(shape: Shape, x: Tensor) -> Tensor:
    """The sum of each channel over images and pixels."""
    sums = torch.empty(shape[1])
    CPU.channel_sums(pool().kernels, shape, x, sums)
    return sums


def runs_on_kernels(x: Tensor) -> bool:
    """Whether kernels take a tensor: float32, on the CPU, and not empty."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() > 0
