"""Settings that several passes have."""

from __future__ import annotations

from fractions import Fraction

from sift_onnx.errors import UsageError

__all__ = ["exact_sparsity"]


def exact_sparsity(value: float | str | Fraction) -> Fraction:
    """A sparsity as the decimal that was written: 0.9 is nine tenths, not the nearest binary fraction.

    Raises:
        UsageError: it is no number, or outside ``0 <= s < 1``.
    """
    try:
        exact = Fraction(str(value))
    except (ValueError, ZeroDivisionError) as error:
        raise UsageError(f"sparsity {value!r} is no number") from error
    if not 0 <= exact < 1:
        raise UsageError(f"sparsity {value} is out of range: it must be at least 0 and less than 1")
    return exact
