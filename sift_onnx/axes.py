"""The algebra of axis sizes: which axes must grow together, and to what.

Widening a network before training needs sizes only, not maps from old to new indices. Each axis of each tensor gets

* a **size**, a linear expression ``const + sum(coefficient * variable)`` with rational coefficients, and
* a **carrier**, the stride and span of the part of the axis that grows: when ``[64, 7, 7]`` is flattened to ``3136``,
  the growing factor 64 sits at stride 49 of the merged axis, and a later reshape must find it there.

Rules about operators (:mod:`sift_onnx.axis_rules`) state equations between sizes; :class:`AxisSystem` solves them by
substitution, which, unlike a union of classes, also expresses sums (a concatenation) and fractions (a split). Growth is
monotone: no axis ever becomes smaller, so an equation ``a + b = constant`` fixes both ``a`` and ``b``.

Nothing in this module knows ONNX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Generic, TypeVar

__all__ = ["Axis", "AxisError", "AxisSystem", "Size", "Solution", "scaled", "size_of"]

CauseT = TypeVar("CauseT")


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
    const: Fraction = Fraction(0)

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
            merged[variable] = merged.get(variable, Fraction(0)) + coefficient
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

    def with_size(self, size: Size) -> Axis:
        """The same carrier with another size."""
        return Axis(size, self.stride, self.span)


@dataclass(frozen=True)
class _Elimination(Generic[CauseT]):
    """How a variable was given away: what it equals, and what said so (None cause: an equation, not a pin)."""

    size: Size
    pin: CauseT | None


@dataclass
class AxisSystem(Generic[CauseT]):
    """Size variables and the equations between them.

    ``CauseT`` is whatever the caller wants to be told again when it asks why an axis cannot grow.
    """

    _originals: list[int] = field(default_factory=list)
    _labels: list[str] = field(default_factory=list)
    _eliminated: dict[int, _Elimination[CauseT]] = field(default_factory=dict)
    _resolved: dict[int, Size] = field(default_factory=dict)
    _integral: set[Size] = field(default_factory=set)

    def variable(self, original: int, label: str) -> Size:
        """A new size variable; ``original`` is its value in the model as it came."""
        self._originals.append(original)
        self._labels.append(label)
        return Size(((len(self._originals) - 1, Fraction(1)),))

    def label(self, variable: int) -> str:
        """The name that a variable was made with."""
        return self._labels[variable]

    def original(self, size: Size) -> int:
        """The value of ``size`` in the model as it came.

        Raises:
            AxisError: the value is no integer.
        """
        value = size.evaluate(self._originals.__getitem__)
        if value.denominator != 1:
            raise AxisError(f"an axis cannot have {value} elements")
        return int(value)

    def resolve(self, size: Size) -> Size:
        """``size`` in terms of the variables that are still free."""
        if not any(v in self._eliminated for v, _ in size.terms):
            return size
        total = size_of(size.const)
        for variable, coefficient in size.terms:
            total = total + self._resolve_variable(variable) * coefficient
        return total

    def _resolve_variable(self, variable: int) -> Size:
        # Iterative, because chains of equations get as long as the graph is deep.
        path: list[int] = []
        while variable in self._eliminated:
            known = self._resolved.get(variable, self._eliminated[variable].size)
            if len(known.terms) == 1 and known.terms[0][1] == 1 and not known.const:
                path.append(variable)
                variable = known.terms[0][0]
                continue
            if any(v in self._eliminated for v in known.variables):
                known = self.resolve(known)
            self._resolved[variable] = known
            result = known
            break
        else:
            result = Size(((variable, Fraction(1)),))
        for passed in path:
            self._resolved[passed] = result
        return result

    def equate(self, a: Size, b: Size, cause: CauseT) -> None:
        """State that ``a`` and ``b`` are the same size.

        Raises:
            AxisError: they differ in the original.
        """
        if self.original(a) != self.original(b):
            raise AxisError(f"sizes {self.original(a)} and {self.original(b)} cannot be the same")
        difference = self.resolve(a) - self.resolve(b)
        if difference.is_constant:
            return
        positive = [v for v, c in difference.terms if c > 0]
        negative = [v for v, c in difference.terms if c < 0]
        if not positive or not negative:
            # One side is fixed already; what fixed it is a better answer to "why" than this equation.
            root = self.why_pinned(a) or self.why_pinned(b)
            self._pin_variables(difference.variables, cause if root is None else root)
            return
        # A variable alone on its side becomes a positive combination of the others, which cannot shrink. Of two
        # candidates the younger one goes, so that names in reports are those met first.
        alone = [side[0] for side in (positive, negative) if len(side) == 1]
        victim = max(alone) if alone else max(difference.variables)
        coefficient = dict(difference.terms)[victim]
        rest = Size(tuple((v, c) for v, c in difference.terms if v != victim), difference.const)
        self._eliminate(victim, rest * (Fraction(-1) / coefficient), None)

    def pin(self, size: Size, cause: CauseT) -> None:
        """State that ``size`` must stay what it was."""
        self._pin_variables(self.resolve(size).variables, cause)

    def _pin_variables(self, variables: Iterable[int], cause: CauseT) -> None:
        for variable in variables:
            self._eliminate(variable, size_of(self._originals[variable]), cause)

    def _eliminate(self, variable: int, size: Size, pin: CauseT | None) -> None:
        self._eliminated[variable] = _Elimination(size, pin)

    def require_integer(self, size: Size) -> None:
        """State that ``size`` must come out as an integer (an axis, or the channels of one group)."""
        if not size.is_constant:
            self._integral.add(size)

    def why_pinned(self, size: Size) -> CauseT | None:
        """What keeps ``size`` from growing: the cause of the first pin that it leads to, or None."""
        seen: set[int] = set()
        pending = list(size.variables)
        while pending:
            variable = pending.pop(0)
            if variable in seen or variable not in self._eliminated:
                continue
            seen.add(variable)
            step = self._eliminated[variable]
            if step.pin is not None:
                return step.pin
            pending.extend(step.size.variables)
        return None

    def solve(
        self, factor_squared: Fraction, growable: Iterable[Size], *, round_to: int = 1, shrink_cause: CauseT
    ) -> Solution:
        """Give each free variable in ``growable`` ``sqrt(factor_squared)`` times its original size, rounded.

        The step of a variable is the least common multiple of the denominators that it occurs with, so that every size
        comes out as an integer; the multiple nearest to the exact product is taken, halves upwards. All other variables
        keep their size.

        Args:
            factor_squared: the widening factor squared, at least 1 (Sparse Wide: ``1 / (1 - s)``, paper section 2.4).
            growable: the widths to scale.
            round_to: prefer sizes that are multiples of this, where the step allows.
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
            values = {
                v: scaled(self._originals[v], factor_squared, step=steps.get(v, 1), round_to=round_to)
                for v in sorted(growing)
            }
            solution = Solution(values, tuple(self._originals), self.resolve)
            shrunk = {
                v
                for size in resolved
                if solution.value(size) < self.original(size)
                for v, c in size.terms
                if c < 0 and v in values
            }
            if not shrunk:
                return solution
            self._pin_variables(sorted(shrunk), shrink_cause)


@dataclass(frozen=True)
class Solution:
    """New values of the variables that grow; all others keep theirs."""

    values: dict[int, int]
    originals: tuple[int, ...]
    resolve: Callable[[Size], Size]

    def value(self, size: Size) -> int:
        """The new value of ``size``.

        Raises:
            AxisError: it is no integer, because nobody required it to be one.
        """
        value = self.resolve(size).evaluate(lambda v: self.values.get(v, self.originals[v]))
        if value.denominator != 1:
            raise AxisError(f"an axis cannot have {value} elements")
        return int(value)


def scaled(original: int, factor_squared: Fraction, *, step: int = 1, round_to: int = 1) -> int:
    """``original + m * step`` nearest to ``sqrt(factor_squared) * original``, halves upwards, in exact integers.

    Args:
        original: the size to scale, at least 1.
        factor_squared: the square of the factor, at least 1.
        step: the distance between allowed sizes.
        round_to: among the allowed sizes, prefer multiples of this where there are any.
    """
    if factor_squared == 1:
        return original

    def nearest(start: int, stride: int) -> int:
        # floor((2 k n - 2 start + stride) / (2 stride)) with k irrational: floor(2 k n) is all that is needed of it.
        doubled = math.isqrt(math.floor(4 * factor_squared * original * original))
        m = (doubled - 2 * start + stride) // (2 * stride)
        return start + max(m, 0) * stride

    period = round_to // math.gcd(step, round_to)
    starts = [original + i * step for i in range(period) if (original + i * step) % round_to == 0]
    if not starts:
        return nearest(original, step)
    return nearest(starts[0], step * period)


def reshape(
    system: AxisSystem[CauseT],
    axes: Sequence[Axis],
    new_sizes: Sequence[int],
    cause: Callable[[str], CauseT],
    *,
    outermost: bool = False,
) -> list[Axis]:
    """The axes after a reshape of ``axes`` to the original sizes ``new_sizes``.

    Both lists are cut into the shortest groups of equal product. Within a group all growth sits in one axis on either
    side: on the left the one that varies, on the right the one that its carrier overlaps.

    Args:
        system: where conflicts are pinned.
        axes: the axes before.
        new_sizes: the sizes after, in the original; their product equals that of ``axes``.
        cause: makes a cause from a sentence.
        outermost: when several new axes overlap the carrier (a width is split in heads and head size), grow the
            outermost instead of the innermost.
    """
    result: list[Axis] = []
    for left, right in _aligned_groups([system.original(a.size) for a in axes], list(new_sizes)):
        group = [axes[i] for i in left]
        result.extend(_reshape_group(system, group, [new_sizes[j] for j in right], cause, outermost))
    return result


def _aligned_groups(old: list[int], new: list[int]) -> Iterator[tuple[range, range]]:
    i = j = 0
    while i < len(old) or j < len(new):
        i_end, j_end, product_old, product_new = i, j, 1, 1
        # Take at least one axis of each side, then whatever evens the products out.
        if i_end < len(old):
            product_old *= old[i_end]
            i_end += 1
        if j_end < len(new):
            product_new *= new[j_end]
            j_end += 1
        while product_old != product_new:
            if product_old < product_new and i_end < len(old):
                product_old *= old[i_end]
                i_end += 1
            elif j_end < len(new):
                product_new *= new[j_end]
                j_end += 1
            else:
                product_old *= old[i_end]
                i_end += 1
        yield range(i, i_end), range(j, j_end)
        i, j = i_end, j_end


def _reshape_group(
    system: AxisSystem[CauseT],
    group: list[Axis],
    new_sizes: list[int],
    cause: Callable[[str], CauseT],
    outermost: bool,
) -> list[Axis]:
    if len(group) == 1 and len(new_sizes) == 1:
        return group
    varying = [i for i, axis in enumerate(group) if not system.resolve(axis.size).is_constant]
    for i in varying[:-1]:
        system.pin(group[i].size, cause("a reshape merges it with another axis that grows"))
    result = [Axis(size_of(n)) for n in new_sizes]
    if not varying:
        return result
    source = group[varying[-1]]
    inner = math.prod(system.original(axis.size) for axis in group[varying[-1] + 1 :])
    outer = math.prod(system.original(axis.size) for axis in group[: varying[-1]])
    low, high = source.stride * inner, source.stride * source.span * inner

    candidates: list[tuple[int, int, int]] = []
    stride = 1
    for j in range(len(new_sizes) - 1, -1, -1):
        overlap = max(low, stride), min(high, stride * new_sizes[j])
        if overlap[0] < overlap[1] and overlap[0] % stride == 0 and overlap[1] % overlap[0] == 0:
            candidates.append((j, overlap[0] // stride, overlap[1] // overlap[0]))
        stride *= new_sizes[j]
    if not candidates:
        system.pin(source.size, cause("a reshape splits it in a way that has no place for growth"))
        return result
    j, carrier_stride, carrier_span = candidates[-1 if outermost else 0]
    others = math.prod(new_sizes[:j] + new_sizes[j + 1 :])
    size = source.size * Fraction(inner * outer, others)
    system.require_integer(size)
    result[j] = Axis(size, carrier_stride, carrier_span)
    return result
