"""Activations in lanes: sixteen images, or tokens, side by side in each vector of the kernels.

``data`` is ``[ceil(n / 16)][c][h][w][16]``. Lanes beyond the last image hold anything finite in activations, and zero
in gradients: what sums over lanes may sum over all of them. A torch function that computes each element alone works on
``data`` as it is, if it keeps finite numbers finite and has finite derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sift_onnx.training.compilation import never_compiled
from sift_onnx.training.sparse_layers.kernels import CPU, empty, pool, runs_on_kernels

__all__ = ["LANES", "Lanes", "Recomputation", "beside", "combined", "from_lanes", "image_lanes", "token_lanes"]

LANES = 16
Shape = tuple[int, int, int, int]


@dataclass(frozen=True)
class Recomputation:
    """How the backward pass gets data again that the forward pass did not keep.

    Attributes:
        run: computes them from ``tensors``.
        tensors: what the backward pass keeps anyway.
    """

    run: Callable[..., Tensor]
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True)
class Lanes:
    """A tensor in lanes.

    Attributes:
        data: the lanes.
        n: images or tokens; the last lanes are idle if it is not a multiple of 16.
        shape: of the tensor as torch has it: images, or for tokens anything that ends in the channels.
        is_tokens: whether it is a matrix of tokens, with the channels last.
        recomputation: how to get the data again, where that takes one pass over memory; None: they have to be kept.
    """

    data: Tensor
    n: int
    shape: tuple[int, ...]
    is_tokens: bool
    recomputation: Recomputation | None = None

    @property
    def kernel_shape(self) -> Shape:
        """``(n, c, h, w)``, as kernels take it."""
        _, c, h, w, _ = self.data.shape
        return self.n, c, h, w

    @property
    def dtype(self) -> torch.dtype:
        """The data type."""
        return self.data.dtype

    def with_data(self, data: Tensor, recomputation: Recomputation | None = None) -> Lanes:
        """The same images or tokens with other features, whose counts ``data`` tells."""
        _, c, h, w, _ = data.shape
        if self.is_tokens:
            shape: tuple[int, ...] = (*self.shape[:-1], c)
        else:
            shape = (self.n, c, w) if len(self.shape) == 3 else (self.n, c, h, w)
        return replace(self, data=data, shape=shape, recomputation=recomputation)

    def map(self, function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Lanes:
        """``function`` of the data."""
        return self.with_data(function(self.data, *args, **kwargs))


@never_compiled
def image_lanes(x: Tensor) -> Lanes:
    """Images in lanes, of one or two spatial axes, or none.

    Args:
        x: ``[n, c, h, w]``, ``[n, c, w]`` or ``[n, c]``.
    """
    sizes = tuple(x.shape)
    planes = x.reshape(*sizes[:2], *(1,) * (4 - len(sizes)), *sizes[2:])
    return Lanes(_packed(planes), sizes[0], sizes, is_tokens=False)


@never_compiled
def token_lanes(x: Tensor) -> Lanes:
    """Tokens in lanes; ``x`` has the channels last."""
    sizes = tuple(x.shape)
    n = math.prod(sizes[:-1])
    return Lanes(_packed(x.reshape(n, sizes[-1], 1, 1)), n, sizes, is_tokens=True)


@never_compiled
def from_lanes(x: Lanes) -> Tensor:
    """The tensor as torch has it."""
    result: Tensor = _FromLanes.apply(x.data, x.n)  # type: ignore[no-untyped-call]
    return result.reshape(x.shape)


def combined(run: Callable[[Tensor, Tensor], Tensor], a: Lanes | Tensor, b: Lanes | Tensor) -> Lanes:
    """A function of two elements; one of them may come as torch has it."""
    like = a if isinstance(a, Lanes) else b
    assert isinstance(like, Lanes)
    first, second = beside(a, like), beside(b, like)
    if first is not None and second is not None:
        return like.with_data(run(first.data, second.data))
    dense = [from_lanes(x) if isinstance(x, Lanes) else x for x in (a, b)]
    result = run(*dense)
    return token_lanes(result) if like.is_tokens else image_lanes(result)


def beside(x: Lanes | Tensor, like: Lanes) -> Lanes | None:
    """``x`` in lanes where its lanes are those of ``like``, so that what broadcasts does so along features."""
    items = len(like.shape) - 1 if like.is_tokens else 1
    if len(x.shape) != len(like.shape) or tuple(x.shape[:items]) != like.shape[:items]:
        return None
    if isinstance(x, Lanes):
        return x if x.is_tokens == like.is_tokens else None
    return token_lanes(x) if like.is_tokens else image_lanes(x)


def _packed(planes: Tensor) -> Tensor:
    result: Tensor = _ToLanes.apply(planes)  # type: ignore[no-untyped-call]
    return result


class _ToLanes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, planes: Tensor) -> Tensor:
        ctx.n = planes.shape[0]
        return _to_lanes(planes)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _FromLanes.apply(gradient, ctx.n)  # type: ignore[no-untyped-call]


class _FromLanes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: Tensor, n: int) -> Tensor:
        return _from_lanes(data, n)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _ToLanes.apply(gradient), None  # type: ignore[no-untyped-call]


def _to_lanes(planes: Tensor) -> Tensor:
    n, c, h, w = planes.shape
    groups = -(-n // LANES)
    if not runs_on_kernels(planes):
        padded = torch.nn.functional.pad(planes, (0, 0, 0, 0, 0, 0, 0, groups * LANES - n))
        return padded.reshape(groups, LANES, c, h, w).permute(0, 2, 3, 4, 1).contiguous()
    planes = planes.contiguous()
    data = empty(groups, c, h, w, LANES)
    CPU.to_lanes(pool().kernels, (n, c, h, w), planes.detach(), data)
    return data


def _from_lanes(data: Tensor, n: int) -> Tensor:
    groups, c, h, w, _ = data.shape
    if not runs_on_kernels(data):
        return data.permute(0, 4, 1, 2, 3).reshape(groups * LANES, c, h, w)[:n].contiguous()
    planes = empty(n, c, h, w)
    CPU.from_lanes(pool().kernels, (n, c, h, w), data.detach().contiguous(), planes)
    return planes
