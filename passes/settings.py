"""Settings that several passes have, as annotated types."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal

from msgspec import Meta

from sift_onnx.errors import UsageError
from sift_onnx.sparsity.patterns.pattern import Pattern

__all__ = [
    "NEVER_NOTED",
    "NOT_FOR_FILES",
    "OF_FAMILY",
    "UNLESS_DEFAULT",
    "Count",
    "Form",
    "Globs",
    "InputShapes",
    "MaskPattern",
    "Number",
    "Sparsity",
    "exact_number",
    "exact_sparsity",
    "noted_number",
]

# Exponents of more digits would take a Fraction for ever.
_NUMBER = re.compile(r"[-+]?[0-9._]{1,40}(/[0-9]{1,40}|[eE][-+]?[0-9]{1,3})?")
_OTHER_NUMBER = re.compile(r"([0-9]{1,9})(?:[.,]([0-9]{1,9}))?\s*(%)?")


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Form:
    """The forms that a setting has besides the one that is given; part of its annotation.

    Attributes:
        held: from what is given to what the pass holds.
        noted: from what the pass holds to what is noted in a model, ready for JSON.
        when_noted: a default that is not noted is one that models were made with before there was a choice.
        for_files: whether files can give it; if not, it is taken as it is.
        refused: what an error says of a word that is not among the choices; ``{pass}`` is the name of the pass.
    """

    held: Callable[[Any], Any] = _same
    noted: Callable[[Any], Any] = _same
    when_noted: Literal["always", "unless default", "never"] = "always"
    for_files: bool = True
    refused: str = "is unknown"


def exact_number(value: float | str | Fraction, what: str = "the number") -> Fraction:
    """A number as the decimal that was written: 0.9 is nine tenths, not the nearest binary fraction.

    Args:
        value: the number.
        what: it is, for the error.

    Raises:
        UsageError: it is not a number.
    """
    text = str(value).strip()
    try:
        if not isinstance(value, Fraction) and not _NUMBER.fullmatch(text):
            raise ValueError(text)
        return Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise UsageError(f"{what} {value!r} is not a number{_meant(text)}") from error


def _meant(text: str) -> str:
    """What to write for a percentage, or for a decimal with a comma."""
    found = _OTHER_NUMBER.fullmatch(text)
    if found is None:
        return ""
    whole, decimals, percent = found.groups()
    return f"; write {float(f'{whole}.{decimals or 0}') / (100 if percent else 1):g}"


def exact_sparsity(value: float | str | Fraction) -> Fraction:
    """A sparsity as the decimal that was written.

    Raises:
        UsageError: it is not a number, or outside ``0 <= s < 1``.
    """
    exact = exact_number(value, "sparsity")
    if not 0 <= exact < 1:
        percent = f"; write {float(exact / 100):g} for {value} %" if 1 < exact < 100 else ""
        raise UsageError(f"sparsity {value} is out of range: it must be at least 0 and less than 1{percent}")
    return exact


def noted_number(value: Fraction) -> str:
    """A decimal where that is exact, else a fraction such as ``1/3``."""
    decimal = str(float(value))
    return decimal if Fraction(decimal) == value else str(value)


def _held_shapes(shapes: Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, shape in (shapes or {}).items()}


def _noted_shapes(shapes: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in shapes.items()}


NEVER_NOTED = Form(when_noted="never")
UNLESS_DEFAULT = Form(when_noted="unless default")
NOT_FOR_FILES = Form(for_files=False)
# A choice that each family has of its own.
OF_FAMILY = Form(refused="is not for {pass}")

Count = Annotated[int, Meta(ge=0)]
Number = Annotated[float | str | Fraction, Meta(description="a number")]
Sparsity = Annotated[Number, Form(exact_sparsity, noted_number)]
Globs = Annotated[Sequence[str], Meta(description='a list of names, as ["layer1.*"]'), Form(tuple, list)]
InputShapes = Annotated[
    Mapping[str, Sequence[Count]] | None,
    Meta(description="a mapping from inputs to sizes, as {x: [1, 3, 224, 224]}"),
    Form(_held_shapes, _noted_shapes, "unless default"),
]
MaskPattern = Annotated[
    str | Pattern,
    Meta(description="a text, in quotes if need be, as '2:4'"),
    Form(Pattern.parse, str, "unless default"),
]
