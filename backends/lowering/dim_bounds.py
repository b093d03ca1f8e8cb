"""Which of two sizes is known to be at least the other, in every run."""

from __future__ import annotations

from sift_onnx.backends.lowering.dim_terms import Dim, added, factors, is_count, product, subtracted, sum_of, terms

__all__ = ["distributed", "is_at_least", "larger", "smaller"]


def is_at_least(size: Dim, other: Dim) -> bool:
    """Whether ``size`` is known to be ``other`` or more in every run."""
    rest = subtracted(size, other)
    for rule in (None, _least_less_remainder, _least_of_windows):
        if rule is not None:
            rest = added(part for term in (*terms(rest), sum_of(rest)[1]) for part in distributed(rule(term)))
        if is_count(rest):
            return True
    return False


def smaller(first: Dim, second: Dim) -> Dim:
    """The smaller one of two sizes."""
    if is_at_least(first, second):
        return second
    return first if is_at_least(second, first) else ("smaller", *sorted((first, second), key=repr))


def larger(first: Dim, second: Dim) -> Dim:
    """The larger one of two sizes."""
    if is_at_least(first, second):
        return first
    return second if is_at_least(second, first) else ("larger", *sorted((first, second), key=repr))


def _least_less_remainder(term: Dim) -> Dim:
    """What a term is not less than, if it takes off a remainder: that is less than what divides."""
    match factors(term):
        case [("remainder", _, part)], int(count) if count < 0 and is_count(part):
            return product((count, part))
    return term


def _least_of_windows(term: Dim) -> Dim:
    """What a term is not less than, if it is of windows without gaps.

    They cover their axis to less than one window of its end, and none lies wholly behind it.
    """
    match factors(term):
        case [("window", base, int(stride), int(room), 0)], int(count) if count % stride == 0 and room >= -stride:
            covered = room + 1 if count > 0 else room + stride
            return product((count // stride, added((base, covered))))
    return term


def distributed(size: Dim) -> list[Dim]:
    """The terms of a number of times a sum."""
    of, count = factors(size)
    if len(of) == 1 and isinstance(of[0], tuple) and of[0][0] == "sum":
        return [product((count, term)) for term in of[0][1:]]
    return [size]
