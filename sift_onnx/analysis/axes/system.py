"""Equations between axis sizes: which axes must grow together.

Rules about operators (:mod:`sift_onnx.analysis.rules`) state equations between sizes; :class:`AxisSystem` takes them in
by substitution, which, unlike a union of classes, also expresses sums (a concatenation) and fractions (a split). Growth
is monotone: no axis ever becomes smaller, so an equation ``a + b = constant`` fixes both ``a`` and ``b``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Generic, TypeVar

from sift_onnx.analysis.axes.sizes import AxisError, Size, size_of, whole

__all__ = ["AxisSystem", "CauseT"]

CauseT = TypeVar("CauseT")

_ZERO = Fraction(0)


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
            AxisError: the value is not an integer.
        """
        return whole(size.evaluate(self._originals.__getitem__))

    @property
    def originals(self) -> tuple[int, ...]:
        """The values of all variables in the model as it came."""
        return tuple(self._originals)

    @property
    def integral_sizes(self) -> set[Size]:
        """The sizes that must come out as integers, resolved."""
        return {self.resolve(size) for size in self._integral}

    @property
    def derived_sizes(self) -> list[Size]:
        """The sizes that follow from free variables, which may become smaller where these grow."""
        return [*self._integral, *(Size(((v, Fraction(1)),)) for v in self._eliminated)]

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
        root = None if fixed is None else self.first_pin(fixed)
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
            self.pin_variables(difference.variables, cause)
            return
        # A variable alone on its side becomes a positive combination of the others, which cannot shrink. Of two
        # candidates the younger one goes, so that names in reports are those met first.
        alone = [side[0] for side in (positive, negative) if len(side) == 1]
        victim = max(alone) if alone else max(difference.variables)
        coefficient = dict(difference.terms)[victim]
        rest = Size(tuple((v, c) for v, c in difference.terms if v != victim), difference.const)
        self._eliminated[victim] = _Elimination(rest * (Fraction(-1) / coefficient), cause if pins else None)

    def pin_variables(self, variables: Iterable[int], cause: CauseT) -> None:
        """State that free variables must stay what they were."""
        for variable in variables:
            self._eliminated[variable] = _Elimination(size_of(self._originals[variable]), cause)

    def require_integer(self, size: Size) -> None:
        """State that ``size`` must come out as an integer (an axis, or the channels of one group)."""
        if not size.is_constant:
            self._integral.add(size)

    def why_pinned(self, size: Size) -> CauseT | None:
        """What keeps ``size`` from growing: the cause of the first pin that it leads to; None if it can grow."""
        return None if self.grows(size) else self.first_pin(size)

    def first_pin(self, size: Size) -> CauseT | None:
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
