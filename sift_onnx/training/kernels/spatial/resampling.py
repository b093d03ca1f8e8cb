"""Resize, and sampling at computed positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sift_onnx.errors import UnsupportedError
from sift_onnx.training.host import floats, ints
from sift_onnx.training.registry import kernel

__all__: list[str] = []


def _places(out: int, size: int, scale: float, mode: str, start: float, end: float, device: torch.device) -> Tensor:
    """Where in the input each output element lies, by the coordinate transformation ``mode``."""
    i = torch.arange(out, dtype=torch.float64, device=device)
    if mode == "asymmetric":
        return i / scale
    if mode == "half_pixel":
        return (i + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        adjustment = out / (size * scale)
        return size / 2 * (1 - adjustment) + (i + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return (i + 0.5) / scale - 0.5 if out > 1 else torch.zeros_like(i)
    if mode == "tf_half_pixel_for_nn":
        return (i + 0.5) / scale
    if mode == "align_corners":
        return i * (size - 1) / (size * scale - 1) if size * scale != 1 else torch.zeros_like(i)
    if mode == "tf_crop_and_resize":
        if out > 1:
            return start * (size - 1) + i * (end - start) * (size - 1) / (out - 1)
        return torch.full_like(i, 0.5 * (start + end) * (size - 1))
    raise UnsupportedError(f"coordinate_transformation_mode {mode!r} is unknown")


def _nearest(places: Tensor, mode: str) -> Tensor:
    if mode == "round_prefer_floor":
        return (places - 0.5).ceil()
    if mode == "round_prefer_ceil":
        return (places + 0.5).floor()
    return places.floor() if mode == "floor" else places.ceil()


def _linear(distance: Tensor) -> Tensor:
    return (1 - distance.abs()).clamp(min=0)


def _cubic(a: float) -> Callable[[Tensor], Tensor]:
    def weight(distance: Tensor) -> Tensor:
        d = distance.abs()
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return torch.where(d <= 1, near, torch.where(d < 2, far, torch.zeros_like(d)))

    return weight


def _matrix(
    places: Tensor, size: int, weight: Callable[[Tensor], Tensor], reach: int, shrink: float, exclude_outside: int
) -> Tensor:
    """Output x input: how much each input element contributes to each output element.

    Taps lie up to ``reach`` elements away, ``1 / shrink`` times as far with antialiasing. Those outside of the input
    take the edge's value, or nothing with ``exclude_outside``.
    """
    radius = math.ceil(reach / shrink)
    base = places.floor()
    offsets = torch.arange(1 - radius, radius + 1, device=places.device, dtype=torch.float64)
    taps = base[:, None] + offsets
    weights = weight((places[:, None] - taps) * shrink)
    outside = (taps < 0) | (taps > size - 1)
    if exclude_outside:
        weights = torch.where(outside, torch.zeros_like(weights), weights)
    if exclude_outside or shrink < 1:
        weights = weights / weights.sum(1, keepdim=True)
    matrix = torch.zeros(len(places), size, dtype=torch.float64, device=places.device)
    return matrix.scatter_add(1, taps.clamp(0, size - 1).to(torch.int64), weights)


@kernel("Resize", since=11, host=(1, 2, 3))
def resize(
    x: Tensor,
    roi: Any = None,
    scales: Any = None,
    sizes: Any = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    """``x`` at other sizes; each resized axis is one product with a matrix, or a choice of elements."""
    chosen = [axis % x.dim() for axis in axes] if axes is not None else list(range(x.dim()))
    given = floats(scales) if scales is not None else []
    if given:
        factors = given
        wanted = [math.floor(x.shape[axis] * factor) for axis, factor in zip(chosen, factors, strict=True)]
    else:
        wanted = ints(sizes)
        factors = [size / x.shape[axis] for axis, size in zip(chosen, wanted, strict=True)]
        if keep_aspect_ratio_policy != "stretch":
            best = min(factors) if keep_aspect_ratio_policy == "not_larger" else max(factors)
            factors = [best] * len(chosen)
            wanted = [math.floor(x.shape[axis] * best + 0.5) for axis in chosen]
    region = floats(roi) if roi is not None else []
    bounds = [(region[i], region[len(chosen) + i]) if region else (0.0, 1.0) for i in range(len(chosen))]
    transform = coordinate_transformation_mode
    result, kind = x, x.dtype
    outside_of: list[tuple[int, Tensor]] = []
    fast = _torch_resize(x, chosen, wanted, factors, transform, mode, nearest_mode, antialias)
    if fast is not None:
        return fast
    for axis, out, factor, (start, end) in zip(chosen, wanted, factors, bounds, strict=True):
        size = x.shape[axis]
        if out == size and factor == 1 and transform != "tf_crop_and_resize":
            continue
        places = _places(out, size, factor, transform, start, end, x.device)
        if transform == "tf_crop_and_resize":
            outside_of.append((axis, (places < 0) | (places > size - 1)))
        if mode == "nearest":
            result = result.index_select(axis, _nearest(places, nearest_mode).clamp(0, size - 1).to(torch.int64))
            continue
        weight, reach = (_linear, 1) if mode == "linear" else (_cubic(cubic_coeff_a), 2)
        matrix = _matrix(places, size, weight, reach, min(factor, 1.0) if antialias else 1.0, exclude_outside)
        working = result if result.dtype.is_floating_point else result.to(torch.float32)
        result = torch.tensordot(working, matrix.to(working.dtype), dims=([axis], [1])).movedim(-1, axis)
    for axis, outside in outside_of:
        mask = outside.reshape([-1 if i == axis else 1 for i in range(x.dim())])
        result = torch.where(mask, torch.as_tensor(extrapolation_value, dtype=result.dtype, device=x.device), result)
    if result.dtype != kind:
        result = result.round() if not kind.is_floating_point else result
    return result.to(kind)


def _torch_resize(
    x: Tensor,
    axes: list[int],
    sizes: list[int],
    factors: list[float],
    transform: str,
    mode: str,
    nearest: str,
    antialias: int,
) -> Tensor | None:
    """The bilinear or nearest resize of torch, where it computes the same; None elsewhere."""
    if x.dim() != 4 or antialias or not x.is_floating_point():
        return None
    size_of, factor_of = dict(zip(axes, sizes, strict=True)), dict(zip(axes, factors, strict=True))
    if any(size_of.get(axis, x.shape[axis]) != x.shape[axis] for axis in (0, 1)):
        return None
    target = [size_of.get(axis, x.shape[axis]) for axis in (2, 3)]
    # torch computes places from the sizes: the same, if the factors are their ratios.
    if any(abs(factor_of.get(a, 1.0) * x.shape[a] - t) > 1e-6 for a, t in zip((2, 3), target, strict=True)):
        return None
    grows = all(t >= x.shape[a] for a, t in zip((2, 3), target, strict=True))
    if mode == "linear" and transform in ("half_pixel", "pytorch_half_pixel") and min(target) > 1:
        return functional.interpolate(x, target, mode="bilinear", align_corners=False)
    if mode == "linear" and transform == "align_corners" and min(target) > 1:
        return functional.interpolate(x, target, mode="bilinear", align_corners=True)
    if mode == "nearest" and transform == "asymmetric" and nearest == "floor" and grows:
        return functional.interpolate(x, target, mode="nearest")
    return None


@kernel("Upsample", since=9, host=(1,))
def upsample(x: Tensor, scales: Any, *, mode: str = "nearest") -> Tensor:
    return resize(x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@kernel("GridSample", since=16)
def grid_sample(
    x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Tensor:
    named = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    return functional.grid_sample(x, grid, named, padding_mode, bool(align_corners))


@kernel("AffineGrid", since=20, host=(1,))
def affine_grid(theta: Tensor, size: Any, *, align_corners: int = 0) -> Tensor:
    return functional.affine_grid(theta, ints(size), bool(align_corners))
