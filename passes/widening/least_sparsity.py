"""The smallest sparsity that makes a width grow: widths are whole numbers, and a small factor rounds back to them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

__all__ = ["least_sparsity"]

# The step between two sparsities is one of these parts.
_PARTS = 10_000


def least_sparsity(above: Fraction, widens: Callable[[Fraction], bool]) -> Fraction | None:
    """The smallest multiple of 1/10,000 at which something grows, with nothing growing one step below it.

    Args:
        above: a sparsity at which nothing grows.
        widens: whether something grows at a sparsity.

    Returns:
        The sparsity; None if nothing grows at any.
    """
    low, high = int(above * _PARTS), _PARTS - 1
    if low >= high or not widens(Fraction(high, _PARTS)):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if widens(Fraction(middle, _PARTS)) else (middle, high)
    return Fraction(high, _PARTS)
