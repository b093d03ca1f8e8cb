"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sift_onnx.operators.windows import explicit_pads
from sift_onnx.training.host import ints
from sift_onnx.training.kernels.spatial.convolution import Window
from sift_onnx.training.registry import kernel
from sift_onnx.training.windows import pad

__all__ = ["SettledWindow", "average_pool", "max_pool", "settled_window", "window_counts"]

_MAX = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}


def _settle(
    shape: Sequence[int], window: Window, ceil_mode: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Pads, strides, dilations, and the padding at the end that lets every window fit."""
    rank = len(window.kernel_shape)
    strides, dilations = window.steps(rank)
    pads = explicit_pads(window.auto_pad, window.pads, shape[2:], window.kernel_shape, strides, dilations)
    short = []
    for i in range(rank):
        size, extent = shape[2 + i] + pads[i] + pads[rank + i], dilations[i] * (window.kernel_shape[i] - 1) + 1
        steps = -(-(size - extent) // strides[i]) if ceil_mode else (size - extent) // strides[i]
        # A window that would start in the padding at the end does not count.
        if ceil_mode and steps * strides[i] >= shape[2 + i] + pads[i]:
            steps -= 1
        short.append(max(steps * strides[i] + extent - size, 0))
    return pads, strides, dilations, tuple(short)


@dataclass(frozen=True)
class SettledWindow:
    """A window over an image of known size; pads are begins, then ends, wide enough for the last window."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]


def settled_window(shape: Sequence[int], *, ceil_mode: int = 0, **attributes: Any) -> SettledWindow:
    """The window of a pool over a tensor of a shape, from the node's attributes."""
    known = {field.name for field in fields(Window)}
    window = Window(**{name: value for name, value in attributes.items() if name in known})
    rank = len(window.kernel_shape)
    pads, strides, dilations, short = _settle(shape, window, ceil_mode)
    ends = tuple(pads[rank + i] + short[i] for i in range(rank))
    return SettledWindow(tuple(window.kernel_shape), strides, dilations, (*pads[:rank], *ends))


@kernel("MaxPool", since=11, attributes=Window)
def max_pool(
    x: Tensor, *, ceil_mode: int = 0, storage_order: int = 0, outputs: int = 1, **attributes: Any
) -> tuple[Tensor, ...]:
    """Maximum over windows, and where it was, as a flat position in the whole input."""
    window = Window(**attributes)
    rank, kernel_shape = len(window.kernel_shape), tuple(window.kernel_shape)
    pads, strides, dilations, short = _settle(x.shape, window, ceil_mode)
    values = x if x.dtype.is_floating_point else x.to(torch.float64)
    symmetric = pads[:rank] == pads[rank:] and not any(short)
    if symmetric and all(2 * p <= k for p, k in zip(pads, kernel_shape, strict=False)) and outputs == 1:
        pooled = _MAX[rank](values, kernel_shape, strides, pads[:rank], dilations)
        return (pooled.to(x.dtype),)
    ends = [pads[rank + i] + short[i] for i in range(rank)]
    padded = pad(values, (*pads[:rank], *ends), -math.inf)
    if outputs == 1:
        return (_MAX[rank](padded, kernel_shape, strides, 0, dilations).to(x.dtype),)
    pooled, where = _MAX[rank](padded, kernel_shape, strides, 0, dilations, return_indices=True)
    return pooled.to(x.dtype), _positions(where, padded.shape, x.shape, pads, storage_order)


def _positions(where: Tensor, padded: Sequence[int], shape: Sequence[int], pads: Sequence[int], order: int) -> Tensor:
    """Positions in one padded plane as positions in the whole tensor, row-major or column-major within the plane."""
    rank = len(shape) - 2
    rest, flat = where, torch.zeros_like(where)
    places: list[Tensor] = []
    for i in reversed(range(rank)):
        places.insert(0, rest % padded[2 + i] - pads[i])
        rest = rest // padded[2 + i]
    step = 1
    for i in range(rank) if order else reversed(range(rank)):
        flat = flat + places[i] * step
        step *= shape[2 + i]
    planes = torch.arange(shape[0] * shape[1], device=where.device).reshape(shape[0], shape[1], *(1,) * rank)
    return flat + planes * step


def _windows(x: Tensor, extents: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Tensor:
    """Every window of the spatial axes: their counts, then the elements of a window as one last axis."""
    rank = len(extents)
    for i in range(rank):
        span = dilations[i] * (extents[i] - 1) + 1
        x = x.unfold(2 + i, span, strides[i])[..., :: dilations[i]]
    return x.reshape(*x.shape[: 2 + rank], -1)


@kernel("AveragePool", since=7, attributes=Window)
def average_pool(x: Tensor, *, ceil_mode: int = 0, count_include_pad: int = 0, **attributes: Any) -> Tensor:
    """Mean over windows, of what is inside the input or, with ``count_include_pad``, its padding."""
    window = Window(**attributes)
    rank, kernel_shape = len(window.kernel_shape), tuple(window.kernel_shape)
    pads, strides, dilations, short = _settle(x.shape, window, ceil_mode)
    if not any(pads) and not any(short) and rank == 2 and set(dilations) == {1}:
        return functional.avg_pool2d(x, kernel_shape, strides)
    ends = [pads[rank + i] + short[i] for i in range(rank)]
    sums = _windows(pad(x, (*pads[:rank], *ends)), kernel_shape, strides, dilations).sum(-1)
    return sums / window_counts(x.shape, ceil_mode=ceil_mode, count_include_pad=count_include_pad, **attributes).to(x)


def window_counts(shape: Sequence[int], *, ceil_mode: int = 0, count_include_pad: int = 0, **attributes: Any) -> Tensor:
    """How many elements each window of ``AveragePool`` has in a tensor of a shape, ``[1, 1, ...]``."""
    window = Window(**attributes)
    rank = len(window.kernel_shape)
    pads, strides, dilations, short = _settle(shape, window, ceil_mode)
    counted = torch.ones((1, 1, *shape[2:]))
    if count_include_pad:
        counted = pad(counted, pads, 1.0)
        counted = pad(counted, (*(0,) * rank, *short))
    else:
        counted = pad(counted, (*pads[:rank], *(pads[rank + i] + short[i] for i in range(rank))))
    return _windows(counted, tuple(window.kernel_shape), strides, dilations).sum(-1)


@kernel("LpPool", since=2, attributes=Window)
def lp_pool(x: Tensor, *, ceil_mode: int = 0, p: int = 2, **attributes: Any) -> Tensor:
    """The p-norm of every window."""
    window = Window(**attributes)
    rank, kernel_shape = len(window.kernel_shape), tuple(window.kernel_shape)
    pads, strides, dilations, short = _settle(x.shape, window, ceil_mode)
    padded = pad(x, (*pads[:rank], *(pads[rank + i] + short[i] for i in range(rank))))
    return _windows(padded, kernel_shape, strides, dilations).abs().pow(p).sum(-1).pow(1 / p)


def _spatial(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


@kernel("GlobalAveragePool")
def global_average_pool(x: Tensor) -> Tensor:
    return x.mean(_spatial(x), keepdim=True)


@kernel("GlobalMaxPool")
def global_max_pool(x: Tensor) -> Tensor:
    return x.amax(_spatial(x), keepdim=True)


@kernel("GlobalLpPool", since=2)
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    return x.abs().pow(p).sum(_spatial(x), keepdim=True).pow(1 / p)


@kernel("MaxUnpool", since=9, host=(2,))
def max_unpool(
    x: Tensor,
    indices: Tensor,
    output_shape: Any = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:
    """Zeros, with the values of ``x`` at flat positions of the whole output that MaxPool came from."""
    rank = len(kernel_shape)
    strides, pads = strides or (1,) * rank, pads or (0,) * (2 * rank)
    sizes = [(x.shape[2 + i] - 1) * strides[i] + kernel_shape[i] - pads[i] - pads[rank + i] for i in range(rank)]
    inferred = [*x.shape[:2], *sizes]
    flat = x.new_zeros(math.prod(inferred)).scatter(0, indices.reshape(-1), x.reshape(-1)).reshape(inferred)
    wanted = ints(output_shape) if output_shape is not None else inferred
    return pad(flat, (*(0,) * len(wanted), *(w - n for w, n in zip(wanted, inferred, strict=True))))
