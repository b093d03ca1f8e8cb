"""The size of an axis, as a linear expression, and where in the axis the part lies that grows.

Widening a network before training needs sizes only, not maps from old to new indices. Each axis of each tensor gets

* a **size**, a linear expression ``const + sum(coefficient * variable)`` with rational coefficients, and
* a **stride and span** of growth, which say where the part that grows lies in the axis: when ``[64, 7, 7]`` is
  flattened to ``3136``, the growing factor 64 has stride 49 in the merged axis, and a later reshape must find it there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["Axis", "AxisError", "Size", "size_of", "whole"]

_ZERO = Fraction(0)


class AxisError(ValueError):
    """Two sizes that are not equal in the original were said to be the same."""


@dataclass(frozen=True)
class Size:
    """A linear expression over size variables.

    Attributes:
        terms: ``(variable, coefficient)`` pairs, sorted by variable, no coefficient zero.
        const: the constant part.
    """

    terms: tuple[tuple[int, Fraction], ...] = ()
    const: Fraction = _ZERO

    @property
    def is_constant(self) -> bool:
        """Whether no variable occurs."""
        return not self.terms

    @property
    def variables(self) -> tuple[int, ...]:
        """The variables that occur, in order."""
        return tuple(v for v, _ in self.terms)

    def __add__(self, other: Size) -> Size:
        merged = dict(self.terms)
        for variable, coefficient in other.terms:
            merged[variable] = merged.get(variable, _ZERO) + coefficient
        return Size(tuple(sorted((v, c) for v, c in merged.items() if c)), self.const + other.const)

    def __mul__(self, factor: Fraction | int) -> Size:
        if not factor:
            return Size()
        return Size(tuple((v, c * factor) for v, c in self.terms), self.const * factor)

    def __truediv__(self, divisor: Fraction | int) -> Size:
        return self * (Fraction(1) / divisor)

    def __sub__(self, other: Size) -> Size:
        return self + other * -1

    def evaluate(self, values: Callable[[int], int | Fraction]) -> Fraction:
        """The value of the expression, given that of each variable."""
        return sum((c * values(v) for v, c in self.terms), self.const)


def size_of(n: int | Fraction) -> Size:
    """The constant size ``n``."""
    return Size((), Fraction(n))


@dataclass(frozen=True)
class Axis:
    """One axis of one tensor.

    Attributes:
        size: its length.
        stride: distance, in elements of this axis of the original, between neighbours of the part that grows.
        span: how many of these there are in the original; 1 when nothing in this axis grows.
    """

    size: Size
    stride: int = 1
    span: int = 1


def whole(value: Fraction) -> int:
    """The number of elements ``value`` is.

    Raises:
        AxisError: it is not an integer.
    """
    if value.denominator != 1:
        raise AxisError(f"an axis cannot have {value} elements")
    return int(value)
