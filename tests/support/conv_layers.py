"""Convolutions of a few sizes and geometries, whose sparse weights training changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from kernel_reference import Array

Operator = TypeVar("Operator")


@dataclass(frozen=True)
class Layer:
    channels: int = 5  # of a group, as the rows
    rows: int = 7
    size: tuple[int, int] = (6, 7)
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    groups: int = 1
    density: float = 0.3
    images: int = 18
    isa: str = ""

    @property
    def geometry(self) -> dict[str, Any]:
        return {"stride": self.stride, "dilation": self.dilation, "pads": self.pads, "groups": self.groups}

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        return (self.rows * self.groups, self.channels, *self.kernel)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.input_shape(self.images)

    def input_shape(self, images: int) -> tuple[int, int, int, int]:
        return (images, self.channels * self.groups, *self.size)

    def operator(self, kind: Callable[..., Operator], indices: Array, places: Array | None = None) -> Operator:
        rows, channels, kh, kw = self.weight_shape
        return kind(rows, channels * kh * kw, indices, places, kernel=self.kernel, isa=self.isa, **self.geometry)
