"""Tensors from sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sift_onnx.training.host import array, ints, number
from sift_onnx.training.registry import kernel
from sift_onnx.training.tensors import tensor_from_array, torch_dtype

__all__: list[str] = []


def _device(anchor: Tensor | None) -> torch.device:
    return anchor.device if isinstance(anchor, Tensor) else torch.device("cpu")


@kernel("ConstantOfShape", since=9, host=(0,))
def constant_of_shape(sizes: Any, *, value: tuple[Any, int] = (0.0, 1), anchor: Any = None) -> Tensor:
    fill, data_type = value
    return torch.full(ints(sizes), fill, dtype=torch_dtype(data_type), device=_device(anchor))


@kernel("Range", since=11, host=(0, 1, 2))
def arange(start: Any, limit: Any, delta: Any, *, anchor: Any = None) -> Tensor:
    # Constants of type int64 come as Python numbers, all others know their type.
    dtype = tensor_from_array(array(start)).dtype if not isinstance(start, float) else torch.float32
    return torch.arange(number(start), number(limit), number(delta), dtype=dtype, device=_device(anchor))


@kernel("EyeLike", since=9)
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    kind = x.dtype if dtype is None else torch_dtype(dtype)
    return torch.ones(x.shape, device=x.device).triu(k).tril(k).to(kind)


@kernel("Trilu", since=14, host=(1,))
def triangle(x: Tensor, k: Any = 0, *, upper: int = 1) -> Tensor:
    offset = int(number(k))
    return x.triu(offset) if upper else x.tril(offset)


@kernel("RandomNormal")
def random_normal(
    *,
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    shape: Sequence[int],
    anchor: Any = None,
) -> Tensor:
    return torch.randn(tuple(shape), device=_device(anchor)).mul(scale).add(mean).to(torch_dtype(dtype))


@kernel("RandomNormalLike")
def random_normal_like(
    x: Tensor, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Tensor:
    return (
        torch.randn(x.shape, device=x.device).mul(scale).add(mean).to(x.dtype if dtype is None else torch_dtype(dtype))
    )


@kernel("RandomUniform")
def random_uniform(
    *,
    dtype: int = 1,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
    shape: Sequence[int],
    anchor: Any = None,
) -> Tensor:
    return torch.rand(tuple(shape), device=_device(anchor)).mul(high - low).add(low).to(torch_dtype(dtype))


@kernel("RandomUniformLike")
def random_uniform_like(
    x: Tensor, *, dtype: int | None = None, high: float = 1.0, low: float = 0.0, seed: float | None = None
) -> Tensor:
    kind = x.dtype if dtype is None else torch_dtype(dtype)
    return torch.rand(x.shape, device=x.device).mul(high - low).add(low).to(kind)


@kernel("Bernoulli", since=15)
def bernoulli(x: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    return torch.bernoulli(x).to(x.dtype if dtype is None else torch_dtype(dtype))
