"""Settings that several passes have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from sift_onnx.errors import UsageError

__all__ = ["exact_number", "exact_sparsity", "noted_number", "noted_shapes"]

# Exponents of more digits would take a Fraction for ever.
_NUMBER = re.compile(r"[-+]?[0-9._]{1,40}(/[0-9]{1,40}|[eE][-+]?[0-9]{1,3})?")


def exact_number(value: float | str | Fraction, what: str) -> Fraction:
    """A number as the decimal that was written: 0.9 is nine tenths, not the nearest binary fraction.

    Args:
        value: the number.
        what: it is, for the error.

    Raises:
        UsageError: it is no number.
    """
    text = str(value).strip()
    try:
        if not isinstance(value, Fraction) and not _NUMBER.fullmatch(text):
            raise ValueError(text)
        return Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise UsageError(f"{what} {value!r} is no number") from error


def exact_sparsity(value: float | str | Fraction) -> Fraction:
    """A sparsity as the decimal that was written.

    Raises:
        UsageError: it is no number, or outside ``0 <= s < 1``.
    """
    exact = exact_number(value, "sparsity")
    if not 0 <= exact < 1:
        raise UsageError(f"sparsity {value} is out of range: it must be at least 0 and less than 1")
    return exact


def noted_number(value: Fraction) -> str:
    """A setting as it is noted in a model: a decimal where that is exact, else a fraction such as ``1/3``."""
    decimal = str(float(value))
    return decimal if Fraction(decimal) == value else str(value)


def noted_shapes(input_shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The setting ``input_shapes`` as it is noted in a model, where there is one."""
    return {"input_shapes": {name: list(shape) for name, shape in input_shapes.items()}} if input_shapes else {}
