"""Sizes of axes that may not be known before a run: a number, a name, or an expression of these.

Two axes are the same size in every run if their expressions are equal. What is not provably equal may still be equal:
the lowering treats that as unknown, and leaves the node to onnxruntime.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sift_onnx.errors import BackendError

__all__ = [
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
    "floored",
    "names_in",
    "product",
    "quotient",
    "remainder",
    "solved",
    "terms",
    "window",
]

Dim = int | str | tuple["Dim", ...]
Dims = tuple[Dim, ...]


def window(size: Dim, kernel: int, stride: int, dilation: int, pads: tuple[int, int], ceil_mode: bool = False) -> Dim:
    """Positions of a sliding window along an axis of ``size``, padded by ``pads`` before and after it.

    With ``ceil_mode`` the last window may reach beyond the padding, but not begin in the padding after it.
    """
    reach = dilation * (kernel - 1) + 1
    if isinstance(size, int):
        room = size + sum(pads) - reach
        if room < 0:
            return 0
        if not ceil_mode:
            return room // stride + 1
        count = -(-room // stride) + 1
        return count - 1 if (count - 1) * stride >= size + pads[0] else count
    if ceil_mode and (stride > 1 or sum(pads) != reach - 1):
        return ("window", size, stride, sum(pads) - reach, 1)
    return _positions(size, stride, sum(pads) - reach)


def _positions(size: Dim, stride: int, room: int) -> Dim:
    """``(size + room) // stride + 1``, at least 0, in one form for all ways to write it.

    ``("window", base, stride, room, 0)`` has no number in its base, nor as much room as a stride, and windows of
    windows are one.
    """
    symbols, number = _terms(size)
    if not are_counts(symbols):
        return ("window", size, stride, room, 0)
    base, room = added(symbols), room + number
    # Less than none of something are none, which a sum does not say.
    if stride == 1:
        return added([base, room + 1]) if room >= -1 else ("window", base, 1, room, 0)
    match base:
        case ("window", inner, int(first), int(own), 0) if own >= -first:
            return _positions(inner, first * stride, own + first * (1 + room))
    more = max(room // stride + 1, 0)
    return added([("window", base, stride, room - more * stride, 0), more])


def cut(size: Dim, end: Dim) -> Dim:
    """Of an axis of ``size``, the positions before ``end``."""
    if isinstance(size, int) and isinstance(end, int):
        return min(size, end)
    rest = difference(size, end)
    if rest is not None and are_counts(terms(rest)) and _terms(rest)[1] >= 0:
        return end
    times = divided(size, end)
    return end if isinstance(times, int) and times > 0 else ("cut", size, end)


def product(sizes: Iterable[Dim]) -> Dim:
    """The sizes multiplied; the order of symbols does not matter."""
    factor = 1
    symbols: list[Dim] = []
    for size in sizes:
        if isinstance(size, int):
            factor *= size
            continue
        more, times = _symbols(size)
        symbols += more
        factor *= times
    if not symbols or factor == 0:
        return factor
    if factor == 1 and len(symbols) == 1:
        return symbols[0]
    return ("product", factor, *sorted(symbols, key=repr))


def added(sizes: Iterable[Dim]) -> Dim:
    """The sizes added; the order of symbols does not matter."""
    number = 0
    symbols: list[Dim] = []
    for size in sizes:
        more, own = _terms(size)
        symbols += more
        number += own
    if not symbols:
        return number
    if number == 0 and len(symbols) == 1:
        return symbols[0]
    return ("sum", number, *sorted(symbols, key=repr))


def difference(size: Dim, less: Dim) -> Dim | None:
    """``size`` without ``less``, where that is a part of it; None where it is not known to be."""
    symbols, number = _terms(size)
    others, own = _terms(less)
    for symbol in others:
        if symbol not in symbols:
            return None
        symbols.remove(symbol)
    return added([number - own, *symbols])


def quotient(total: Dim, part: Dim) -> Dim:
    """``total`` by ``part``, which is known to divide it."""
    if part == 1:
        return total
    if isinstance(total, int) and isinstance(part, int):
        return total // part if part else 0
    if total == part:
        return 1
    symbols, factor = _symbols(total)
    others, divisor = _symbols(part)
    for symbol in others:
        if symbol not in symbols:
            return ("quotient", total, part)
        symbols.remove(symbol)
    if divisor == 0 or factor % divisor:
        return ("quotient", total, part)
    return product([factor // divisor, *symbols])


def divided(total: Dim, part: Dim) -> Dim | None:
    """``total`` by ``part``; None if that is not known to be whole."""
    if isinstance(total, int) and isinstance(part, int) and (part == 0 or total % part):
        return None
    result = quotient(total, part)
    return None if isinstance(result, tuple) and result[0] == "quotient" else result


def floored(total: Dim, part: Dim) -> Dim | None:
    """``total`` by ``part`` without the rest, as integers are divided; None if they are not known well enough."""
    if not isinstance(part, int) or part < 1:
        return None
    if isinstance(total, int):
        return total // part if total >= 0 else None
    symbols, number = _terms(total)
    # What is taken off a size is a part of it, so nothing is negative.
    return added([_positions(total, part, 0), -1]) if are_counts(symbols) and number >= -part else None


def remainder(total: Dim, part: Dim) -> int | None:
    """What is left of ``total`` when ``part`` divides it, with the sign of ``part``; None if that is not known."""
    if not isinstance(part, int) or part == 0:
        return None
    symbols, number = _terms(total)
    return number % part if all(divided(symbol, part) is not None for symbol in symbols) else None


def broadcast(first: Dim, second: Dim) -> Dim:
    """The size of two axes that are the same, or of which one is 1."""
    if first == second or second == 1:
        return first
    return second if first == 1 else ("broadcast", first, second)


def bound(size: Dim, known: Mapping[str, Dim]) -> Dim:
    """``size`` with numbers, or other sizes, in the place of the names that are ``known``."""
    match size:
        case int():
            return size
        case str():
            return known.get(size, size)
        case ("product", *factors):
            return product(bound(factor, known) for factor in factors)
        case ("sum", *terms):
            return added(bound(term, known) for term in terms)
        case ("quotient", total, part):
            return quotient(bound(total, known), bound(part, known))
        case ("cut", of, end):
            return cut(bound(of, known), bound(end, known))
        case ("window", of, int(stride), int(pads), 0):
            before = bound(of, known)
            return window(before, -pads, stride, 1, (0, 0)) if before != of else size
        case ("broadcast", first, second):
            return broadcast(bound(first, known), bound(second, known))
    return size


def solved(total: Dim, other: Dim) -> tuple[str, int] | None:
    """The only name that two equal sizes leave open, and its number; None if they leave more open, or nothing."""
    symbols, factor = _symbols(total)
    others, divisor = _symbols(other)
    for symbol in list(symbols):
        if symbol in others:
            symbols.remove(symbol)
            others.remove(symbol)
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


def _symbols(size: Dim) -> tuple[list[Dim], int]:
    """The symbols that a product is of, and its factor."""
    if isinstance(size, int):
        return [], size
    if isinstance(size, tuple) and size[0] == "product":
        assert isinstance(size[1], int)
        return list(size[2:]), size[1]
    return [size], 1


def terms(size: Dim) -> list[Dim]:
    """The symbols that are added to a number."""
    return _terms(size)[0]


def _terms(size: Dim) -> tuple[list[Dim], int]:
    """The symbols that a sum is of, and its number."""
    if isinstance(size, int):
        return [], size
    if isinstance(size, tuple) and size[0] == "sum":
        assert isinstance(size[1], int)
        return list(size[2:]), size[1]
    return [size], 0


def are_counts(symbols: Iterable[Dim]) -> bool:
    """Whether none of them is negative in any run."""
    factors = (symbol[1] for symbol in symbols if isinstance(symbol, tuple) and symbol[0] == "product")
    return all(isinstance(factor, int) and factor >= 0 for factor in factors)


def concrete(dims: Dims) -> tuple[int, ...]:
    """``dims`` of a run, where all of them are numbers."""
    sizes = tuple(size for size in dims if isinstance(size, int))
    if len(sizes) != len(dims):
        raise BackendError(f"an axis has no size: {dims}")
    return sizes
