"""Sizes that expressions have in usual runs: no axis is shorter than what is taken off it, or longer than its table.

torch writes the frames of a convolution as ``(s - 3) // 2 + 1`` where a window has none of an axis that is too short,
and the places of a table as ``min(s, 64)``. Both are what the rest of the graph has under a condition on the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from sift_onnx.backends.lowering.dim_terms import sum_of
from sift_onnx.backends.lowering.dims import (
    OF_TWO,
    Dim,
    Dims,
    added,
    are_counts,
    bound,
    factors,
    names_in,
    product,
    subtracted,
    terms,
    window,
)

__all__ = ["AssumedSizes", "SizeProbe", "holds", "in_words"]

# Sizes that are tried, to say in words which ones fulfil a condition.
_TRIED = 1 << 12


class AssumedSizes:
    """Simplifies expressions, and keeps what has to hold for that.

    With ``divides``, axes are also as long as all of the windows into which they are parted.

    Attributes:
        conditions: expressions that are not negative in the runs that they were simplified for.
        is_parted: whether any size is that of windows into which an axis is parted.
    """

    def __init__(self, divides: bool = False) -> None:
        """Nothing is assumed yet."""
        self._divides = divides
        self.conditions: dict[Dim, None] = {}
        self.is_parted = False
        self._known: dict[Dim, Dim] = {}

    def dims(self, dims: Dims) -> Dims:
        """Each of ``dims`` simplified."""
        return tuple(map(self.simplified, dims))

    def simplified(self, size: Dim) -> Dim:
        """``size``, or an expression that is equal to it where the conditions hold."""
        if not isinstance(size, tuple):
            return size
        found = self._known.get(size)
        if found is None:
            found = self._known[size] = self._made(size)
        return found

    def _made(self, size: Dim) -> Dim:
        match size:
            case ("product", *parts):
                return self._whole(product(map(self.simplified, parts)))
            case ("sum", *parts):
                return added(map(self.simplified, parts))
            case ("window", base, int(stride), int(room), 0):
                return self._window(base, stride, room)
            case ("truncated", total, int(part)) if part > 0 and are_counts(terms(self.simplified(total))):
                total = self.simplified(total)
                self._assume(total)
                return added((self._window(total, part, 0), -1))
            case ("smaller" | "larger", *parts) if len(parts) == 2 and any(isinstance(part, int) for part in parts):
                limit, other = sorted(parts, key=lambda part: not isinstance(part, int))
                other = self.simplified(other)
                self._assume(subtracted(limit, other) if size[0] == "smaller" else subtracted(other, limit))
                return other
            case ("cut", int(table), end):
                end = self.simplified(end)
                self._assume(subtracted(table, end))
                return end
            case (str(kind), first, second) if kind in OF_TWO:
                return OF_TWO[kind](self.simplified(first), self.simplified(second))
        return size

    def _whole(self, size: Dim) -> Dim:
        """The axis that was parted, for as many positions as its windows have."""
        of, count = factors(size)
        for place, symbol in enumerate(of):
            match symbol:
                case ("window", base, int(stride), int(room), 0) if room == -stride:
                    common = math.gcd(count, stride)
                    self.is_parted |= common > 1
                    if common > 1 and self._divides:
                        self._assume(subtracted(product((stride, symbol)), base))
                        rest = window(base, stride // common, stride // common, 1, (0, 0))
                        return self._whole(product((count // common, rest, *of[:place], *of[place + 1 :])))
        return size

    def _window(self, base: Dim, stride: int, room: int) -> Dim:
        """``(base + room) // stride + 1`` of an axis that is long enough."""
        found = window(self.simplified(base), -room, stride, 1, (0, 0))
        match found:
            case ("window", of, int(own), int(rest), 0) if rest < -own:
                self._assume(added((of, rest + own)))
                missing = -rest // own - (rest % own == 0)
                return added((window(of, -rest - missing * own, own, 1, (0, 0)), -missing))
        return found

    def _assume(self, condition: Dim) -> None:
        # What never holds stays, so that no plan is made under it.
        if not isinstance(condition, int) or condition < 0:
            self.conditions[condition] = None


class SizeProbe:
    """Stands for :class:`AssumedSizes`, leaves sizes as they are, and remembers whether those would simplify one.

    Attributes:
        simplifies: whether a size that was asked for has a simpler expression in usual runs.
    """

    def __init__(self) -> None:
        """Nothing has been asked for."""
        self._assumed = AssumedSizes(divides=True)
        self.simplifies = False

    def dims(self, dims: Dims) -> Dims:
        """``dims`` themselves."""
        return tuple(map(self.simplified, dims))

    def simplified(self, size: Dim) -> Dim:
        """``size`` itself."""
        if not self.simplifies and self._assumed.simplified(size) != size:
            self.simplifies = True
        return size


def in_words(conditions: Iterable[Dim]) -> str:
    """Which sizes fulfil conditions; ones that are of several names are named together."""
    by_name: dict[str, list[Dim]] = {}
    others: set[str] = set()
    for condition in conditions:
        names = names_in(condition)
        others.update(names if len(names) > 1 else ())
        by_name.update((name, [*by_name.get(name, ()), condition]) for name in names if len(names) == 1)
    found = [f"{name!r} {_sizes_in_words(name, own)}" for name, own in by_name.items()]
    return ", ".join([*found, *(f"usual {name!r}" for name in sorted(others))])


def _sizes_in_words(name: str, conditions: Sequence[Dim]) -> str:
    ends = {abs(sum_of(condition)[1]) for condition in conditions}
    tried = sorted({*range(_TRIED + 1), *ends})
    fulfilled = [n for n in tried if all(holds(condition, {name: n}) for condition in conditions)]
    if not fulfilled:
        return "of none that was tried"
    least, most = fulfilled[0], fulfilled[-1]
    if least == most:
        return f"of {least}"
    steps = {second - first for first, second in pairwise(fulfilled)}
    step = steps.pop() if len(steps) == 1 else 1
    limits = f"of {least} or more" if most > _TRIED - step else f"from {least} to {most}"
    return limits if step == 1 else f"{limits}, in steps of {step}"


def holds(condition: Dim, sizes: Mapping[str, Dim]) -> bool:
    """Whether an expression is not negative for these sizes; those of other names are not known, and all right."""
    value = bound(condition, sizes)
    return not isinstance(value, int) or value >= 0
