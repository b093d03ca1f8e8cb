"""Sums and products of sizes, in one form for all orders in which they can be written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "Dim",
    "Dims",
    "added",
    "are_counts",
    "difference",
    "factors",
    "is_count",
    "product",
    "subtracted",
    "sum_of",
    "terms",
]

Dim = int | str | tuple["Dim", ...]
Dims = tuple[Dim, ...]


def product(sizes: Iterable[Dim]) -> Dim:
    """The sizes multiplied; the order of symbols does not matter, and of a negated sum each term is negated."""
    factor = 1
    symbols: list[Dim] = []
    for size in sizes:
        if isinstance(size, int):
            factor *= size
            continue
        more, times = factors(size)
        symbols += more
        factor *= times
    if not symbols or factor == 0:
        return factor
    if len(symbols) == 1 and (factor == 1 or (factor == -1 and isinstance(symbols[0], tuple))):
        (symbol,) = symbols
        if factor == 1:
            return symbol
        if isinstance(symbol, tuple) and symbol[0] == "sum":
            return added(product((-1, term)) for term in symbol[1:])
    return ("product", factor, *sorted(symbols, key=repr))


def added(sizes: Iterable[Dim]) -> Dim:
    """The sizes added; the order of symbols does not matter, and what is taken off again is gone.

    A number beside a multiple of a sum is part of that sum, if it is such a multiple too. Factors are taken for sizes,
    so that the sum must not become negative.
    """
    number = 0
    counts: dict[Dim, int] = {}
    for size in sizes:
        more, own = sum_of(size)
        number += own
        for symbol, count in _counted(more):
            counts[symbol] = counts.get(symbol, 0) + count
    rolled = _whole_of_parts(counts)
    if rolled is not None:
        return added((number, *rolled))
    symbols = [product((count, symbol)) for symbol, count in counts.items() if count]
    if not symbols:
        return number
    if number == 0 and len(symbols) == 1:
        return symbols[0]
    if len(symbols) == 1:
        of, count = factors(symbols[0])
        if len(of) == 1 and isinstance(of[0], tuple) and of[0][0] == "sum" and number % count == 0:
            whole = added((of[0], number // count))
            if number // count >= 0 or is_count(whole):
                return product((count, whole))
    return ("sum", number, *sorted(symbols, key=repr))


def subtracted(size: Dim, less: Dim) -> Dim:
    """``size`` without ``less``, which may be more in some run."""
    return added((size, product((-1, less))))


def difference(size: Dim, less: Dim) -> Dim | None:
    """``size`` without ``less``, where that is a part of it; None where it is not known to be."""
    own = dict(_counted(terms(size)))
    for symbol, count in _counted(terms(less)):
        if not 0 <= count <= own.get(symbol, 0) and not own.get(symbol, 0) <= count < 0:
            return None
    return subtracted(size, less)


def factors(size: Dim) -> tuple[list[Dim], int]:
    """The symbols that a product is of, and its factor."""
    if isinstance(size, int):
        return [], size
    if isinstance(size, tuple) and size[0] == "product":
        assert isinstance(size[1], int)
        return list(size[2:]), size[1]
    return [size], 1


def terms(size: Dim) -> list[Dim]:
    """The symbols that are added to a number."""
    return sum_of(size)[0]


def sum_of(size: Dim) -> tuple[list[Dim], int]:
    """The symbols that a sum is of, and its number."""
    if isinstance(size, int):
        return [], size
    if isinstance(size, tuple) and size[0] == "sum":
        assert isinstance(size[1], int)
        return list(size[2:]), size[1]
    return [size], 0


def are_counts(symbols: Iterable[Dim]) -> bool:
    """Whether none of them is negative in any run."""
    return all(_is_count(symbol) for symbol in symbols)


def is_count(size: Dim) -> bool:
    """Whether a size is negative in no run."""
    return sum_of(size)[1] >= 0 and are_counts(terms(size))


def _is_count(symbol: Dim) -> bool:
    of, factor = factors(symbol)
    return factor >= 0 and all(map(_is_factor_of_count, of))


def _is_factor_of_count(symbol: Dim) -> bool:
    match symbol:
        case ("truncated", *_):
            return False
        case ("smaller", *parts):
            return all(map(is_count, parts))
        case ("larger", *parts):
            return any(map(is_count, parts))
        case ("remainder", _, part):
            return is_count(part)
    return True


def _whole_of_parts(counts: Mapping[Dim, int]) -> list[Dim] | None:
    """The terms of a sum, if some are the first positions of an axis and all others of it; None for another sum."""
    for symbol, count in counts.items():
        match symbol:
            case ("cut", of, int(end)) if count > 0:
                others: Dim = ("window", of, 1, -end - 1, 0)
                if counts.get(others) == count:
                    left = (product((times, own)) for own, times in counts.items() if own not in (symbol, others))
                    return [product((count, of)), *left]
    return None


def _counted(symbols: Iterable[Dim]) -> Iterator[tuple[Dim, int]]:
    """Symbols without their factors, and these."""
    for symbol in symbols:
        of, factor = factors(symbol)
        yield product(of), factor
