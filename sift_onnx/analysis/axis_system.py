"""The algebra of axis sizes: which axes must grow together, and to what.

Widening a network before training needs sizes only, not maps from old to new indices. Each axis of each tensor gets

* a **size**, a linear expression ``const + sum(coefficient * variable)`` with rational coefficients, and
* a **stride and span** of growth, which say where the part that grows lies in the axis: when ``[64, 7, 7]`` is
  flattened to ``3136``, the growing factor 64 has stride 49 in the merged axis, and a later reshape must find it there.

Rules about operators (:mod:`sift_onnx.analysis.rules`) state equations between sizes; :class:`AxisSystem` solves them
by substitution, which, unlike a union of classes, also expresses sums (a concatenation) and fractions (a split). Growth
is monotone: no axis ever becomes smaller, so an equation ``a + b = constant`` fixes both ``a`` and ``b``.

Nothing in this module knows ONNX.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Generic, TypeVar

from sift_onnx.analysis.scaled_sizes import scaled

__all__ = ["Axis", "AxisError", "AxisSystem", "Size", "Solution", "size_of"]

CauseT = TypeVar("CauseT")

_ZERO = Fraction(0)
# Widths of one size share a step if the size has at least this many steps.
_SHARED_STEPS_PER_SIZE = 16


class AxisError(ValueError):
    """Two sizes that are not equal in the original were said to be the same."""


@dataclass(frozen=True)
class Size:
    """A linear expression over size variables.

    Attributes:
        terms: ``(variable, coefficient)`` pairs, sorted by variable, no coefficient zero.
        const: the constant part.
    """

    terms: tuple[tuple[int, Fraction], ...] = ()
    const: Fraction = _ZERO

    @property
    def is_constant(self) -> bool:
        """Whether no variable occurs."""
        return not self.terms

    @property
    def variables(self) -> tuple[int, ...]:
        """The variables that occur, in order."""
        return tuple(v for v, _ in self.terms)

    def __add__(self, other: Size) -> Size:
        merged = dict(self.terms)
        for variable, coefficient in other.terms:
            merged[variable] = merged.get(variable, _ZERO) + coefficient
        return Size(tuple(sorted((v, c) for v, c in merged.items() if c)), self.const + other.const)

    def __mul__(self, factor: Fraction | int) -> Size:
        if not factor:
            return Size()
        return Size(tuple((v, c * factor) for v, c in self.terms), self.const * factor)

    def __truediv__(self, divisor: Fraction | int) -> Size:
        return self * (Fraction(1) / divisor)

    def __sub__(self, other: Size) -> Size:
        return self + other * -1

    def evaluate(self, values: Callable[[int], int | Fraction]) -> Fraction:
        """The value of the expression, given that of each variable."""
        return sum((c * values(v) for v, c in self.terms), self.const)


def size_of(n: int | Fraction) -> Size:
    """The constant size ``n``."""
    return Size((), Fraction(n))


@dataclass(frozen=True)
class Axis:
    """One axis of one tensor.

    Attributes:
        size: its length.
        stride: distance, in elements of this axis of the original, between neighbours of the part that grows.
        span: how many of these there are in the original; 1 when nothing in this axis grows.
    """

    size: Size
    stride: int = 1
    span: int = 1


@dataclass(frozen=True)
class _Elimination(Generic[CauseT]):
    """How a variable was given away: what it equals, and what said so (None: an equation that pins nothing)."""

    size: Size
    pin: CauseT | None


@dataclass
class AxisSystem(Generic[CauseT]):
    """Size variables and the equations between them.

    ``CauseT`` is what the caller gets back when it asks why an axis cannot grow.
    """

    _originals: list[int] = field(default_factory=list)
    _eliminated: dict[int, _Elimination[CauseT]] = field(default_factory=dict)
    _resolved: dict[int, Size] = field(default_factory=dict)
    _reasons: dict[int, CauseT] = field(default_factory=dict)
    _integral: set[Size] = field(default_factory=set)

    def copy(self) -> AxisSystem[CauseT]:
        """A system to solve on trial: what solving pins here stays free there."""
        return AxisSystem(*(copy(getattr(self, f.name)) for f in fields(self)))

    def variable(self, original: int) -> Size:
        """A new size variable; ``original`` is its value in the model as it came."""
        self._originals.append(original)
        return Size(((len(self._originals) - 1, Fraction(1)),))

    def fixed(self, n: int, cause: CauseT | None) -> Size:
        """A size that never grows, and why; an axis of size 1 needs no reason."""
        if n == 1 or cause is None:
            return size_of(n)
        size = self.variable(n)
        self.pin(size, cause)
        return size

    def original(self, size: Size) -> int:
        """The value of ``size`` in the model as it came.

        Raises:
            AxisError: the value is no integer.
        """
        value = size.evaluate(self._originals.__getitem__)
        if value.denominator != 1:
            raise AxisError(f"an axis cannot have {value} elements")
        return int(value)

    def grows(self, size: Size) -> bool:
        """Whether ``size`` is free to grow."""
        return not self.resolve(size).is_constant

    def resolve(self, size: Size) -> Size:
        """``size`` in terms of the variables that are still free."""
        stale = [v for v in size.variables if v in self._eliminated]
        for variable in stale:
            self._settle(variable)
        return self._substituted(size) if stale else size

    def _settle(self, variable: int) -> None:
        """Bring the memo of an eliminated variable up to date."""
        # A stack of its own, because chains of equations get as long as the graph is deep.
        pending = [variable]
        while pending:
            known = self._memo(pending[-1])
            unsettled = [v for v in known.variables if v in self._eliminated and not self._is_settled(v)]
            if unsettled:
                pending.extend(unsettled)
                continue
            self._resolved[pending.pop()] = self._substituted(known)

    def _is_settled(self, variable: int) -> bool:
        return not any(v in self._eliminated for v in self._memo(variable).variables)

    def _memo(self, variable: int) -> Size:
        known = self._resolved.get(variable)
        return self._eliminated[variable].size if known is None else known

    def _substituted(self, size: Size) -> Size:
        """``size`` with each eliminated variable replaced by its memo."""
        terms: dict[int, Fraction] = {}
        const = size.const
        for variable, coefficient in size.terms:
            if variable not in self._eliminated:
                terms[variable] = terms.get(variable, _ZERO) + coefficient
                continue
            known = self._memo(variable)
            const += known.const * coefficient
            for v, c in known.terms:
                terms[v] = terms.get(v, _ZERO) + c * coefficient
        return Size(tuple(sorted((v, c) for v, c in terms.items() if c)), const)

    def equate(self, a: Size, b: Size, cause: CauseT) -> None:
        """State that ``a`` and ``b`` are the same size.

        Raises:
            AxisError: they differ in the original.
        """
        if self.original(a) != self.original(b):
            raise AxisError(f"sizes {self.original(a)} and {self.original(b)} cannot be the same")
        left, right = self.resolve(a), self.resolve(b)
        # Where one side is fixed already, what fixed it is a better answer to "why" than this equation.
        fixed = a if left.is_constant else b if right.is_constant else None
        root = None if fixed is None else self._first_pin(fixed)
        self._vanish(left - right, cause if root is None else root, pins=fixed is not None)

    def pin(self, size: Size, cause: CauseT) -> None:
        """State that ``size`` must stay what it was."""
        self._vanish(self.resolve(size) - size_of(size.evaluate(self._originals.__getitem__)), cause, pins=True)

    def _vanish(self, difference: Size, cause: CauseT, *, pins: bool) -> None:
        """State that ``difference``, which is resolved, is zero; ``pins`` when that keeps a size from growing."""
        if difference.is_constant:
            return
        positive = [v for v, c in difference.terms if c > 0]
        negative = [v for v, c in difference.terms if c < 0]
        if not positive or not negative:
            self._pin_variables(difference.variables, cause)
            return
        # A variable alone on its side becomes a positive combination of the others, which cannot shrink. Of two
        # candidates the younger one goes, so that names in reports are those met first.
        alone = [side[0] for side in (positive, negative) if len(side) == 1]
        victim = max(alone) if alone else max(difference.variables)
        coefficient = dict(difference.terms)[victim]
        rest = Size(tuple((v, c) for v, c in difference.terms if v != victim), difference.const)
        self._eliminated[victim] = _Elimination(rest * (Fraction(-1) / coefficient), cause if pins else None)

    def _pin_variables(self, variables: Iterable[int], cause: CauseT) -> None:
        for variable in variables:
            self._eliminated[variable] = _Elimination(size_of(self._originals[variable]), cause)

    def require_integer(self, size: Size) -> None:
        """State that ``size`` must come out as an integer (an axis, or the channels of one group)."""
        if not size.is_constant:
            self._integral.add(size)

    def why_pinned(self, size: Size) -> CauseT | None:
        """What keeps ``size`` from growing: the cause of the first pin that it leads to; None if it can grow."""
        return None if self.grows(size) else self._first_pin(size)

    def _first_pin(self, size: Size) -> CauseT | None:
        """The cause of a pin that ``size`` leads to, near ones first, or None."""
        came_from: dict[int, int | None] = dict.fromkeys(size.variables)
        pending = deque(size.variables)
        while pending:
            variable = pending.popleft()
            step = self._eliminated.get(variable)
            if step is None:
                continue
            cause = self._reasons.get(variable) if step.pin is None else step.pin
            if cause is not None:
                passed: int | None = variable
                while passed is not None:
                    self._reasons[passed] = cause
                    passed = came_from[passed]
                return cause
            for v in step.size.variables:
                if v not in came_from:
                    came_from[v] = variable
                    pending.append(v)
        return None

    def solve(
        self,
        factor_squared: Fraction,
        growable: Iterable[Size],
        *,
        round_to: int = 1,
        round_up: bool = False,
        shrink_cause: CauseT,
    ) -> Solution:
        """Give each free variable in ``growable`` ``sqrt(factor_squared)`` times its original size, rounded.

        The step of a variable is the least common multiple of the denominators that it occurs with, so that every size
        comes out as an integer; the multiple nearest to the exact product is taken, halves upwards. Variables that were
        equal share their steps, so that they stay equal: the residual stream of a transformer and the width of its
        attention, which must divide into heads. All other variables keep their size.

        Args:
            factor_squared: the widening factor squared, at least 1 (Sparse Wide: ``1 / (1 - s)``, paper section 2.4).
            growable: the widths to scale.
            round_to: prefer sizes that are multiples of this, where the step allows.
            round_up: take the next multiple that is not below the exact product, in place of the nearest.
            shrink_cause: recorded for variables that are pinned here because an axis would become smaller.

        Raises:
            ValueError: ``factor_squared`` below 1, or ``round_to`` below 1.
        """
        if factor_squared < 1 or round_to < 1:
            raise ValueError("the widening factor and round_to must be at least 1")
        wanted = list(growable)
        while True:
            resolved = {self.resolve(size) for size in self._integral}
            growing = {v for size in wanted for v in self.resolve(size).variables}
            steps: dict[int, int] = {}
            for size in resolved:
                for variable, coefficient in size.terms:
                    steps[variable] = math.lcm(steps.get(variable, 1), coefficient.denominator)
            steps = self._shared_steps(growing, steps, resolved)
            values = {
                v: scaled(self._originals[v], factor_squared, step=steps[v], round_to=round_to, round_up=round_up)
                for v in sorted(growing)
            }
            solution = Solution(values, tuple(self._originals), self.resolve)
            if not self._pin_opposed(solution, shrink_cause):
                return solution

    def _shared_steps(self, growing: set[int], steps: dict[int, int], sizes: Iterable[Size]) -> dict[int, int]:
        """Steps by which sizes that were equal stay equal, where that is not too coarse for them.

        A size that is a part of a variable counts too: a third of a fused projection is as wide as the residual stream.
        """
        shared = {v: steps.get(v, 1) for v in growing}
        equal: dict[int, set[tuple[int, Fraction]]] = {self._originals[v]: set() for v in growing}
        for v in growing:
            equal[self._originals[v]].add((v, Fraction(1)))
        for size in sizes:
            if len(size.terms) == 1 and not size.const and size.terms[0][0] in growing:
                equal.get(self.original(size), set()).add(size.terms[0])
        settled = False
        while not settled:
            settled = True
            for original, members in equal.items():
                common = math.lcm(*(int(coefficient * shared[v]) for v, coefficient in members))
                if common * _SHARED_STEPS_PER_SIZE > original:
                    continue
                for v, coefficient in members:
                    wider = shared[v] * (common // math.gcd(common, int(coefficient * shared[v])))
                    if wider != shared[v] and wider * _SHARED_STEPS_PER_SIZE <= self._originals[v]:
                        shared[v] = wider
                        settled = False
        return shared

    def _pin_opposed(self, solution: Solution, shrink_cause: CauseT) -> bool:
        """Pin what grows at the cost of an axis that would become smaller; whether there was any."""
        pinned = False
        for size in (*self._integral, *(Size(((v, Fraction(1)),)) for v in tuple(self._eliminated))):
            resolved = self.resolve(size)
            if solution.exact(resolved) >= resolved.evaluate(self._originals.__getitem__):
                continue
            # Where nothing on its side grows, the sum of the two is fixed, and what fixed it is the answer to "why".
            opposed = [v for v, c in resolved.terms if c < 0 and v in solution.values]
            root = self._first_pin(size) if all(c < 0 for _, c in resolved.terms) else None
            self._pin_variables(opposed, shrink_cause if root is None else root)
            pinned = True
        return pinned


@dataclass(frozen=True)
class Solution:
    """New values of the variables that grow; all others keep theirs."""

    values: dict[int, int]
    originals: tuple[int, ...]
    resolve: Callable[[Size], Size]

    def value(self, size: Size) -> int:
        """The new value of ``size``.

        Raises:
            AxisError: it is no integer, because it was not required to be one.
        """
        value = self.exact(size)
        if value.denominator != 1:
            raise AxisError(f"an axis cannot have {value} elements")
        return int(value)

    def exact(self, size: Size) -> Fraction:
        """The new value of ``size``, whether it is an integer or not."""
        return self.resolve(size).evaluate(lambda v: self.values.get(v, self.originals[v]))
