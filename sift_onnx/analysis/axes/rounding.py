"""Sizes times the square root of a fraction, rounded in exact integers."""

from __future__ import annotations

import math
from fractions import Fraction

__all__ = ["scaled"]


def scaled(original: int, factor_squared: Fraction, *, step: int = 1, round_to: int = 1, round_up: bool = False) -> int:
    """``original + m * step`` nearest to ``sqrt(factor_squared) * original``, halves upwards, in exact integers.

    Args:
        original: the size to scale, at least 1.
        factor_squared: the square of the factor, at least 1.
        step: the distance between allowed sizes.
        round_to: among the allowed sizes, prefer multiples of this where there are any.
        round_up: the smallest that is not below the product, in place of the nearest.
    """
    if factor_squared == 1:
        return original
    square = factor_squared * original * original

    def next_up(start: int, stride: int) -> int:
        product = math.isqrt(math.ceil(square) - 1) + 1
        return start + max(-((start - product) // stride), 0) * stride

    def nearest(start: int, stride: int) -> int:
        # floor((2 k n - 2 start + stride) / (2 stride)) with k irrational: floor(2 k n) is all that is needed of it.
        doubled = math.isqrt(math.floor(4 * square))
        m = (doubled - 2 * start + stride) // (2 * stride)
        return start + max(m, 0) * stride

    period = round_to // math.gcd(step, round_to)
    starts = [original + i * step for i in range(period) if (original + i * step) % round_to == 0]
    chosen = next_up if round_up else nearest
    if not starts:
        return chosen(original, step)
    return chosen(starts[0], step * period)
