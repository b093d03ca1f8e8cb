"""Sizes of axes that may not be known before a run: a number, a name, or an expression of these.

Two axes are the same size in every run if their expressions are equal. What is not provably equal may still be equal:
the lowering treats that as unknown, and leaves the node to onnxruntime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import cast

from sift_onnx.backends.lowering.dim_bounds import distributed, is_at_least, larger, smaller
from sift_onnx.backends.lowering.dim_terms import (
    Dim,
    Dims,
    added,
    are_counts,
    difference,
    factors,
    is_count,
    product,
    subtracted,
    sum_of,
    terms,
)
from sift_onnx.errors import BackendError

__all__ = [
    "OF_TWO",
    "Dim",
    "Dims",
    "added",
    "are_counts",
    "bound",
    "broadcast",
    "concrete",
    "cut",
    "difference",
    "divided",
    "factors",
    "floored",
    "is_at_least",
    "is_bound_by",
    "is_count",
    "larger",
    "modulo",
    "names_in",
    "product",
    "quotient",
    "remainder",
    "smaller",
    "solved",
    "subtracted",
    "terms",
    "truncated",
    "window",
]


def window(size: Dim, kernel: int, stride: int, dilation: int, pads: tuple[int, int], ceil_mode: bool = False) -> Dim:
    """Positions of a sliding window along an axis of ``size``, padded by ``pads`` before and after it.

    With ``ceil_mode`` the last window may reach beyond the padding, but not begin in the padding after it.
    """
    reach = dilation * (kernel - 1) + 1
    if isinstance(size, int):
        room = size + sum(pads) - reach
        if not ceil_mode:
            return max(room // stride + 1, 0)
        count = max(-(-room // stride) + 1, 0)
        return count - 1 if (count - 1) * stride >= size + pads[0] else count
    if ceil_mode and stride <= reach - pads[1]:
        # No window begins behind the axis.
        return _positions(size, stride, sum(pads) - reach + stride - 1)
    if ceil_mode and (stride > 1 or sum(pads) != reach - 1):
        return ("window", size, stride, sum(pads) - reach, 1)
    return _positions(size, stride, sum(pads) - reach)


def _positions(size: Dim, stride: int, room: int) -> Dim:
    """``(size + room) // stride + 1``, at least 0, in one form for all ways to write it.

    ``("window", base, stride, room, 0)`` has no number in its base, nor as much room as a stride, and windows of
    windows are one.
    """
    symbols, number = sum_of(size)
    if not are_counts(symbols):
        return ("window", size, stride, room, 0)
    base, room = added(symbols), room + number
    # Less than none of something are none, which a sum does not say.
    if stride == 1:
        return added([base, room + 1]) if room >= -1 else ("window", base, 1, room, 0)
    if room >= -stride:
        # Strides that the axis is made of.
        strides = [part for part in (divided(symbol, stride) for symbol in symbols) if part is not None]
        if len(strides) == len(symbols):
            return added([*strides, room // stride + 1])
    more = max(room // stride + 1, 0)
    room -= more * stride
    match base:
        # Of no windows there are none, since a part of the first one is taken off: ``room`` is negative.
        case ("window", inner, int(first), int(own), 0):
            return added([_positions(inner, first * stride, own + first * (1 + room)), more])
    return added([("window", base, stride, room, 0), more])


def cut(size: Dim, end: Dim) -> Dim:
    """Of an axis of ``size``, the positions before ``end``."""
    if isinstance(size, int) and isinstance(end, int):
        return min(size, end)
    if is_at_least(size, end):
        return end
    times = divided(size, end)
    return end if isinstance(times, int) and times > 0 else ("cut", size, end)


def quotient(total: Dim, part: Dim) -> Dim:
    """``total`` by ``part``, which divides it in every run that gets there."""
    total, part = _reduced(total, part)
    if part == 1:
        return total
    if isinstance(total, int) and isinstance(part, int):
        return total // part if part else 0
    # Nothing is left over.
    whole = floored(total, part)
    return ("quotient", total, part) if whole is None else whole


def divided(total: Dim, part: Dim) -> Dim | None:
    """``total`` by ``part``; None if that is not known to be whole."""
    total, part = _reduced(total, part)
    return total if part == 1 else None


def _cancel(symbols: list[Dim], others: list[Dim]) -> None:
    """Remove the symbols that both products have."""
    for symbol in list(symbols):
        if symbol in others:
            symbols.remove(symbol)
            others.remove(symbol)


def _reduced(total: Dim, part: Dim) -> tuple[Dim, Dim]:
    """The same ratio without what both are products of; of something by itself, that of 1 to 1."""
    if total == part and part != 0:
        return 1, 1
    symbols, factor = factors(total)
    others, divisor = factors(part)
    _cancel(symbols, others)
    common = math.gcd(factor, divisor) or 1
    common = -common if divisor < 0 else common
    return product([factor // common, *symbols]), product([divisor // common, *others])


def floored(total: Dim, part: Dim) -> Dim | None:
    """``total`` by ``part`` without the rest, as integers are divided; None if they are not known well enough."""
    if not isinstance(part, int) or part < 1:
        return None
    if isinstance(total, int):
        return total // part if total >= 0 else None
    symbols, number = sum_of(total)
    # What is taken off a size is a part of it, so nothing is negative.
    return added([_positions(total, part, 0), -1]) if are_counts(symbols) and number >= -part else None


def remainder(total: Dim, part: Dim) -> int | None:
    """What is left of ``total`` when ``part`` divides it, with the sign of ``part``; None if that is not known."""
    if not isinstance(part, int) or part == 0:
        return None
    symbols, number = sum_of(total)
    return number % part if all(divided(symbol, part) is not None for symbol in symbols) else None


def modulo(total: Dim, part: Dim) -> Dim:
    """What is left of ``total`` when ``part`` divides it, with the sign of ``part``, as an expression."""
    known = remainder(total, part)
    if known is not None:
        return known
    if not isinstance(part, int) or part < 1:
        return ("remainder", total, part)
    symbols, number = sum_of(total)
    rest = [symbol for symbol in symbols if divided(symbol, part) is None]
    number %= part
    is_forward = are_counts(rest)
    if not is_forward:
        # Backwards from the last position of a multiple.
        rest, number = [product((-1, symbol)) for symbol in rest], part - 1 - number
    whole = added((*rest, number))
    multiple = floored(whole, part)
    if multiple is None:
        return ("remainder", total, part)
    left = added((whole, *distributed(product((-part, multiple)))))
    return left if is_forward else subtracted(part - 1, left)


def truncated(total: Dim, part: Dim) -> Dim:
    """``total`` by ``part`` as integers are divided, rounded towards zero."""
    if isinstance(total, int) and isinstance(part, int) and part:
        return abs(total) // abs(part) * (1 if (total < 0) == (part < 0) else -1)
    whole = floored(total, part)
    return ("truncated", total, part) if whole is None else whole


def broadcast(first: Dim, second: Dim) -> Dim:
    """The size of two axes that are the same, or of which one is 1."""
    if first == second or second == 1:
        return first
    return second if first == 1 else ("broadcast", first, second)


def bound(size: Dim, known: Mapping[str, Dim] | Mapping[Dim, Dim]) -> Dim:
    """``size`` with numbers, or other sizes, in the place of the names and expressions that are ``known``."""
    if isinstance(size, int):
        return size
    found = cast("Mapping[Dim, Dim]", known).get(size)
    if found is not None:
        return found
    match size:
        case ("product", *parts):
            return product(bound(part, known) for part in parts)
        case ("sum", *parts):
            return added(bound(part, known) for part in parts)
        case ("window", of, int(stride), int(pads), 0):
            before = bound(of, known)
            return window(before, -pads, stride, 1, (0, 0)) if before != of else size
        case (str(kind), first, second) if kind in OF_TWO:
            return OF_TWO[kind](bound(first, known), bound(second, known))
    return size


# Expressions of two sizes, by what stands before them.
OF_TWO: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "broadcast": broadcast, "cut": cut, "larger": larger, "quotient": quotient, "remainder": modulo,
    "smaller": smaller, "truncated": truncated,
}  # fmt: skip


def is_bound_by(size: Dim, known: Collection[Dim]) -> bool:
    """Whether :func:`bound` makes a number of ``size`` with numbers for what is ``known``."""
    if isinstance(size, int) or size in known:
        return True
    return isinstance(size, tuple) and all(is_bound_by(part, known) for part in size[1:])


def solved(total: Dim, other: Dim) -> tuple[str, int] | None:
    """The only name that two equal sizes leave open, and its number; None if they leave more open, or nothing."""
    symbols, factor = factors(total)
    others, divisor = factors(other)
    _cancel(symbols, others)
    if others and not symbols:
        symbols, factor, divisor = others, divisor, factor
        others = []
    if others or len(symbols) != 1 or not isinstance(symbols[0], str) or factor < 1 or divisor % factor:
        return None
    return symbols[0], divisor // factor


def names_in(size: Dim | tuple[int, int]) -> set[str]:
    """The names that an expression is of."""
    if isinstance(size, str):
        return {size}
    if isinstance(size, tuple):
        return set().union(*(names_in(part) for part in size[1:]))
    return set()


def concrete(dims: Dims) -> tuple[int, ...]:
    """``dims`` of a run, where all of them are numbers."""
    sizes = tuple(size for size in dims if isinstance(size, int))
    if len(sizes) != len(dims):
        raise BackendError(f"an axis has no size: {dims}")
    return sizes
