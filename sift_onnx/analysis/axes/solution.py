"""New values of size variables: a factor times what they were, in steps that keep every size an integer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from sift_onnx.analysis.axes.rounding import scaled
from sift_onnx.analysis.axes.sizes import Size, whole
from sift_onnx.analysis.axes.system import AxisSystem, CauseT

__all__ = ["Solution", "solve"]

# Widths of one size share a step if the size has at least this many steps.
_SHARED_STEPS_PER_SIZE = 16


@dataclass(frozen=True)
class Solution:
    """New values of the variables that grow; all others keep theirs."""

    values: Mapping[int, int]
    originals: Sequence[int]
    resolve: Callable[[Size], Size]

    def value(self, size: Size) -> int:
        """The new value of ``size``.

        Raises:
            AxisError: it is not an integer, because it was not required to be one.
        """
        return whole(self.exact(size))

    def exact(self, size: Size) -> Fraction:
        """The new value of ``size``, whether it is an integer or not."""
        return self.resolve(size).evaluate(lambda v: self.values.get(v, self.originals[v]))


def solve(
    system: AxisSystem[CauseT],
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
        system: the equations; what grows at the cost of another axis is pinned in it.
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
    wanted, originals = list(growable), system.originals
    while True:
        integral = system.integral_sizes
        growing = {v for size in wanted for v in system.resolve(size).variables}
        steps: dict[int, int] = {}
        for size in integral:
            for variable, coefficient in size.terms:
                steps[variable] = math.lcm(steps.get(variable, 1), coefficient.denominator)
        steps = _shared_steps(system, {v: steps.get(v, 1) for v in growing}, integral)
        values = {
            v: scaled(originals[v], factor_squared, step=steps[v], round_to=round_to, round_up=round_up)
            for v in sorted(growing)
        }
        solution = Solution(values, originals, system.resolve)
        if not _pin_opposed(system, solution, shrink_cause):
            return solution


def _shared_steps(system: AxisSystem[CauseT], steps: Mapping[int, int], sizes: Iterable[Size]) -> dict[int, int]:
    """Steps by which sizes that were equal stay equal, where that is not too coarse for them.

    A size that is a part of a variable counts too: a third of a fused projection is as wide as the residual stream.
    """
    shared, originals = dict(steps), system.originals
    equal: dict[int, set[tuple[int, Fraction]]] = {originals[v]: set() for v in shared}
    for v in shared:
        equal[originals[v]].add((v, Fraction(1)))
    for size in sizes:
        if len(size.terms) == 1 and not size.const and size.terms[0][0] in shared:
            equal.get(system.original(size), set()).add(size.terms[0])
    settled = False
    while not settled:
        settled = True
        for original, members in equal.items():
            common = math.lcm(*(int(coefficient * shared[v]) for v, coefficient in members))
            if common * _SHARED_STEPS_PER_SIZE > original:
                continue
            for v, coefficient in members:
                wider = shared[v] * (common // math.gcd(common, int(coefficient * shared[v])))
                if wider != shared[v] and wider * _SHARED_STEPS_PER_SIZE <= originals[v]:
                    shared[v] = wider
                    settled = False
    return shared


def _pin_opposed(system: AxisSystem[CauseT], solution: Solution, shrink_cause: CauseT) -> bool:
    """Pin what grows at the cost of an axis that would become smaller; whether there was any."""
    pinned = False
    for size in system.derived_sizes:
        resolved = system.resolve(size)
        if solution.exact(resolved) >= resolved.evaluate(solution.originals.__getitem__):
            continue
        # Where nothing on its side grows, the sum of the two is fixed, and what fixed it is the answer to "why".
        opposed = [v for v, c in resolved.terms if c < 0 and v in solution.values]
        root = system.first_pin(size) if all(c < 0 for _, c in resolved.terms) else None
        system.pin_variables(opposed, shrink_cause if root is None else root)
        pinned = True
    return pinned
