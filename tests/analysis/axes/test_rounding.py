"""Scaled sizes, rounded against an oracle."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_onnx.analysis.axes.rounding import scaled


def oracle(original: int, factor_squared: Fraction, step: int, round_to: int) -> int:
    """Brute force in 60 digits; exact where the factor is rational, so that ties are seen."""
    with localcontext() as context:
        context.prec = 60
        top, bottom = math.isqrt(factor_squared.numerator), math.isqrt(factor_squared.denominator)
        target: Fraction | Decimal
        if Fraction(top * top, bottom * bottom) == factor_squared:
            target = Fraction(top, bottom) * original
        else:
            square = Decimal(factor_squared.numerator) / Decimal(factor_squared.denominator)
            target = square.sqrt() * original
        allowed = [original + i * step for i in range(2 * original * (top // bottom + 2) // step + 2 * round_to + 2)]
        preferred = [n for n in allowed if n % round_to == 0]
        return min(preferred or allowed, key=lambda n: (abs(n - target), -n))


# Sizes, squares of factors (of percents, and of fractions), steps, and what widths are rounded to.
SCALINGS = (
    st.integers(1, 300),
    st.one_of(
        st.integers(1, 99).map(lambda percent: 1 / (1 - Fraction(percent, 100))),
        st.builds(Fraction, st.integers(5, 16), st.integers(2, 4)).map(lambda k: k * k),
    ).filter(lambda f: f > 1),
    st.integers(1, 24),
    st.integers(1, 16),
)


@settings(deadline=None, max_examples=300)
@given(*SCALINGS)
def test_scaling_takes_the_nearest_allowed_size_and_ties_upwards(
    original: int, factor_squared: Fraction, step: int, round_to: int
) -> None:
    found = scaled(original, factor_squared, step=step, round_to=round_to)
    assert found == oracle(original, factor_squared, step, round_to)


@settings(deadline=None, max_examples=200)
@given(*SCALINGS)
def test_rounding_up_takes_the_smallest_allowed_size_that_is_not_below_the_product(
    original: int, factor_squared: Fraction, step: int, round_to: int
) -> None:
    found = scaled(original, factor_squared, step=step, round_to=round_to, round_up=True)
    assert found**2 >= factor_squared * original**2
    stride = math.lcm(step, round_to) if found % round_to == 0 else step
    assert (found - original) % step == 0
    before = found - stride
    assert before < original or before**2 < factor_squared * original**2
    assert found % round_to == 0 or all((original + i * step) % round_to for i in range(round_to))


def test_a_tie_goes_up() -> None:
    assert scaled(3, Fraction(9, 4)) == 5  # 4.5
    assert scaled(6, Fraction(4), step=4) == 14  # 12 lies between 10 and 14


def test_sizes_that_have_no_multiple_of_the_rounding_keep_their_step() -> None:
    assert scaled(9, Fraction(4), step=6, round_to=4) == 21  # always odd


@pytest.mark.parametrize(
    ("sparsity", "widths"),
    [
        ("0.5", [91, 181, 362, 724]),
        ("0.75", [128, 256, 512, 1024]),
        ("0.9", [202, 405, 810, 1619]),
        ("0.95", [286, 572, 1145, 2290]),
    ],
)
def test_widths_of_a_resnet(sparsity: str, widths: list[int]) -> None:
    factor_squared = 1 / (1 - Fraction(sparsity))
    assert [scaled(n, factor_squared) for n in (64, 128, 256, 512)] == widths
