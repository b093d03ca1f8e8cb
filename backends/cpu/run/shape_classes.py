"""Requests that take about the same time for each of their items: they share a decision about where they run."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

__all__ = ["ShapeClass", "shape_class"]

ShapeClass = tuple[tuple[int, ...], ...]


def shape_class(shapes: Iterable[tuple[int, ...]]) -> ShapeClass:
    """The class of a request whose inputs have these shapes.

    Each size is rounded down to a power of two, or to one and a half of one: 1, 2, 3, 4, 6, 8, 12, 16, 24. So sizes of
    a class differ by less than a half, and twelve images, from which on they are in the lanes, begin a class.
    """
    return tuple(map(_of_one, shapes))


# The caches of a decoder have one shape.
@lru_cache
def _of_one(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(_rounded_down, shape))


def _rounded_down(size: int) -> int:
    if size < 3:
        return size
    power = 1 << (size.bit_length() - 1)
    return power + power // 2 if 2 * size >= 3 * power else power
