"""The algebra of axis sizes: random systems, and widths of networks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_onnx.analysis.axes.sizes import AxisError, Size, size_of
from sift_onnx.analysis.axes.solution import solve
from sift_onnx.analysis.axes.system import AxisSystem

HUGE = Fraction(10**12)


@dataclass(frozen=True)
class Equations:
    """Equations and pins over variables whose original values fulfil them all."""

    originals: list[int]
    equations: list[tuple[Size, Size]]
    pinned: list[int]

    def stated(self, order: list[int]) -> tuple[AxisSystem[str], list[Size]]:
        """A system in which the statements were made in ``order``; every variable is an axis."""
        system: AxisSystem[str] = AxisSystem()
        variables = [system.variable(n) for n in self.originals]
        for i in order:
            if i < len(self.equations):
                system.equate(*self.equations[i], "an equation")
            else:
                system.pin(variables[self.pinned[i - len(self.equations)]], "a pin")
        for variable in variables:
            system.require_integer(variable)
        return system, variables

    @property
    def statements(self) -> int:
        return len(self.equations) + len(self.pinned)


def variable(index: int) -> Size:
    return Size(((index, Fraction(1)),))


@st.composite
def equations(draw: st.DrawFn) -> Equations:
    originals = draw(st.lists(st.integers(1, 24), min_size=1, max_size=5))
    stated: list[tuple[Size, Size]] = []
    for _ in range(draw(st.integers(1, 10))):
        known = st.integers(0, len(originals) - 1)
        i = draw(known)
        kind = draw(st.sampled_from(["sum", "part", "multiple", "offset", "same", "same"]))
        if kind == "same":
            alike = [j for j, n in enumerate(originals) if n == originals[i] and j != i]
            if alike:
                stated.append((variable(i), variable(draw(st.sampled_from(alike)))))
            continue
        if kind == "sum":
            parts = draw(st.lists(known, min_size=2, max_size=3))
            new, size = sum(originals[j] for j in parts), size_of(0)
            for j in parts:
                size = size + variable(j)
        elif kind == "part":
            divisor = draw(st.sampled_from([d for d in range(1, 7) if originals[i] % d == 0]))
            new, size = originals[i] // divisor, variable(i) / divisor
        elif kind == "multiple":
            new, size = 3 * originals[i], variable(i) * 3
        else:
            new, size = originals[i] + 2, variable(i) + size_of(2)
        originals.append(new)
        sides = (variable(len(originals) - 1), size)
        stated.append(sides if draw(st.booleans()) else sides[::-1])
    pinned = draw(st.lists(st.integers(0, len(originals) - 1), max_size=2))
    return Equations(originals, stated, pinned)


factors = st.sampled_from([Fraction(1), Fraction(4, 3), Fraction(2), Fraction(4), Fraction(10), Fraction(20), HUGE])


@settings(deadline=None, max_examples=200)
@given(equations(), factors, st.data())
def test_a_solution_fulfils_every_equation_in_whole_numbers_and_shrinks_nothing(
    case: Equations, factor: Fraction, data: st.DataObject
) -> None:
    system, variables = case.stated(data.draw(st.permutations(range(case.statements))))
    growable = data.draw(st.lists(st.sampled_from(variables)))
    solution = solve(system, factor, growable, shrink_cause="shrinks")
    values = [solution.value(v) for v in variables]
    for a, b in case.equations:
        assert a.evaluate(values.__getitem__) == b.evaluate(values.__getitem__)
        assert solution.exact(a) == a.evaluate(values.__getitem__)
    assert all(now >= before for now, before in zip(values, case.originals, strict=True))
    assert all(values[i] == case.originals[i] for i in case.pinned)


@settings(deadline=None, max_examples=100)
@given(equations(), st.data())
def test_a_factor_of_one_changes_no_size(case: Equations, data: st.DataObject) -> None:
    system, variables = case.stated(data.draw(st.permutations(range(case.statements))))
    solution = solve(
        system, Fraction(1), variables, round_to=data.draw(st.sampled_from([1, 8])), shrink_cause="shrinks"
    )
    assert [solution.value(v) for v in variables] == case.originals


@settings(deadline=None, max_examples=200)
@given(equations(), st.data())
def test_what_grows_does_not_depend_on_the_order_of_the_statements(case: Equations, data: st.DataObject) -> None:
    grown = []
    for order in (list(range(case.statements)), data.draw(st.permutations(range(case.statements)))):
        system, variables = case.stated(order)
        solution = solve(system, HUGE, variables, shrink_cause="shrinks")
        grown.append({i for i, v in enumerate(variables) if solution.value(v) > case.originals[i]})
        assert {i for i, v in enumerate(variables) if system.why_pinned(v) is None} >= grown[-1]
    assert grown[0] == grown[1]


@settings(deadline=None, max_examples=50)
@given(equations())
def test_without_pins_and_fixed_parts_everything_grows(case: Equations) -> None:
    homogeneous = Equations(case.originals, [e for e in case.equations if not (e[0] - e[1]).const], [])
    system, variables = homogeneous.stated(list(range(homogeneous.statements)))
    solution = solve(system, HUGE, variables, shrink_cause="shrinks")
    assert all(solution.value(v) > n for v, n in zip(variables, case.originals, strict=True))


def test_only_what_is_asked_for_grows() -> None:
    system: AxisSystem[str] = AxisSystem()
    a, b, c = (system.variable(8) for _ in range(3))
    system.equate(a, b, "")
    solution = solve(system, Fraction(4), [b], shrink_cause="")
    assert [solution.value(v) for v in (a, b, c)] == [16, 16, 8]


@pytest.mark.parametrize("asked", ["first", "second"])
def test_a_sum_grows_with_either_part_also_where_it_was_met_first(asked: str) -> None:
    system: AxisSystem[str] = AxisSystem()
    total, first, second = system.variable(7), system.variable(3), system.variable(4)
    system.equate(total, first + second, "concatenation")
    solution = solve(system, Fraction(4), [{"first": first, "second": second}[asked]], shrink_cause="shrinks")
    expected = {"first": [10, 6, 4], "second": [11, 3, 8]}[asked]
    assert [solution.value(size) for size in (total, first, second)] == expected


def test_divisions_of_one_width_by_several_numbers_are_all_whole() -> None:
    system: AxisSystem[str] = AxisSystem()
    width = system.variable(60)
    for divisor in (4, 6):
        system.require_integer(width / divisor)
    assert solve(system, Fraction(3), [width], shrink_cause="").value(width) == 108  # 103.9 among 96, 108


def test_sizes_that_differ_in_the_original_are_not_the_same() -> None:
    system: AxisSystem[str] = AxisSystem()
    with pytest.raises(AxisError, match="8 and 9"):
        system.equate(system.variable(8), system.variable(9), "")


def test_a_size_that_nobody_required_to_be_whole_is_refused_where_it_is_not() -> None:
    system: AxisSystem[str] = AxisSystem()
    width = system.variable(6)
    solution = solve(system, Fraction(100, 36), [width], shrink_cause="")
    assert solution.value(width) == 10
    assert solution.exact(width / 3) == Fraction(10, 3)
    with pytest.raises(AxisError, match="10/3"):
        solution.value(width / 3)


@pytest.mark.parametrize(("factor", "round_to"), [(Fraction(1, 2), 1), (Fraction(2), 0)])
def test_a_factor_or_a_rounding_below_one_is_refused(factor: Fraction, round_to: int) -> None:
    system: AxisSystem[str] = AxisSystem()
    with pytest.raises(ValueError, match="at least 1"):
        solve(system, factor, [system.variable(8)], round_to=round_to, shrink_cause="")


# Why something cannot grow.


def chain(length: int) -> tuple[AxisSystem[str], list[Size]]:
    system: AxisSystem[str] = AxisSystem()
    links = [system.variable(8) for i in range(length)]
    for a, b in pairwise(links):
        system.equate(a, b, "link")
    return system, links


@pytest.mark.parametrize("pinned_first", [True, False])
def test_a_pin_is_the_answer_along_a_whole_chain(pinned_first: bool) -> None:
    system, links = chain(6)
    end = system.variable(8)
    if pinned_first:
        system.pin(end, "graph input")
        system.equate(links[-1], end, "link: the other side is fixed")
    else:
        system.equate(links[-1], end, "link")
        assert {system.why_pinned(link) for link in links} == {None}
        system.pin(end, "graph input")
    assert {system.why_pinned(link) for link in links} == {"graph input"}


def test_a_pinned_sum_pins_its_parts_and_names_itself() -> None:
    system: AxisSystem[str] = AxisSystem()
    a, b, total = system.variable(3), system.variable(4), system.variable(7)
    system.equate(total, a + b, "concatenation")
    system.pin(total, "graph output")
    assert {system.why_pinned(size) for size in (a, b, total)} == {"graph output"}


def test_the_sum_of_something_fixed_and_something_free_can_grow() -> None:
    system: AxisSystem[str] = AxisSystem()
    a, b, total = system.variable(3), system.variable(4), system.variable(7)
    system.equate(total, a + b, "concatenation")
    system.pin(a, "graph input")
    assert system.why_pinned(a) == "graph input"
    assert system.why_pinned(total) is None
    assert solve(system, Fraction(4), [b], shrink_cause="").value(total) == 3 + 8


def test_where_nothing_was_pinned_before_the_equation_itself_is_the_answer() -> None:
    system: AxisSystem[str] = AxisSystem()
    a, b = system.variable(3), system.variable(4)
    system.equate(a + b, size_of(7), "a table of 7")
    assert {system.why_pinned(size) for size in (a, b)} == {"a table of 7"}


def test_parts_of_two_equal_sums_are_pinned_with_either_sum() -> None:
    system: AxisSystem[str] = AxisSystem()
    a, b, c, d = (system.variable(4) for _ in range(4))
    left, right = system.variable(8), system.variable(8)
    system.equate(left, a + b, "concatenation")
    system.equate(right, c + d, "concatenation")
    system.equate(left, right, "addition")
    system.pin(left, "graph output")
    solution = solve(system, Fraction(4), [a, b, c, d], shrink_cause="shrinks")
    assert [solution.value(v) for v in (a, b, c, d, left, right)] == [4, 4, 4, 4, 8, 8]
    assert {system.why_pinned(size) for size in (a, b, c, d, left, right)} == {"graph output"}


def test_a_pinned_part_of_two_equal_sums_lets_the_others_grow_together() -> None:
    system: AxisSystem[str] = AxisSystem()
    a, b, c, part = (system.variable(n) for n in (5, 7, 9, 3))
    system.equate(a + b, c + part, "addition")
    system.pin(part, "graph output")
    assert [system.why_pinned(size) for size in (a, b, c, part)] == [None, None, None, "graph output"]
    value = solve(system, Fraction(4), [a, b, c], shrink_cause="").value
    assert value(part) == 3
    assert value(c) == value(a) + value(b) - 3 > 9


@pytest.mark.parametrize("order", ["forwards", "backwards", "shuffled"])
def test_chains_as_long_as_a_very_deep_graph_are_solved(order: str) -> None:
    length = 20_000
    system: AxisSystem[str] = AxisSystem()
    links = [system.variable(6 + i) for i in range(length)]
    pairs = list(pairwise(links))
    if order == "backwards":
        pairs.reverse()
    elif order == "shuffled":
        random.Random(0).shuffle(pairs)
    for a, b in pairs:
        system.equate(b, a + size_of(1), "link")
    # Each answer costs little once a neighbour has it: asking for all of them must not square the work.
    solution = solve(system, Fraction(4), links[:1], shrink_cause="")
    assert solution.value(links[-1]) == 12 + length - 1
    system.pin(links[length // 2], "root")
    assert {system.why_pinned(link) for link in links} == {"root"}


def test_widths_of_gpt_in_the_paper() -> None:
    """Table 14: 1092 with heads of 91, 4344; at 75 % 1536 and 6144."""
    system: AxisSystem[str] = AxisSystem()
    model, hidden = system.variable(768), system.variable(3072)
    system.require_integer(model / 12)
    half, three_quarters = (solve(system, Fraction(k), [model, hidden], shrink_cause="").value for k in (2, 4))
    assert [half(size) for size in (model, model / 12, hidden)] == [1092, 91, 4344]
    assert [three_quarters(size) for size in (model, model / 12, hidden)] == [1536, 128, 6144]


def test_widths_that_were_equal_stay_equal_where_one_of_them_must_divide() -> None:
    system: AxisSystem[str] = AxisSystem()
    stream, heads = system.variable(768), system.variable(768)
    system.require_integer(heads / 12)
    solution = solve(system, Fraction(2), [stream, heads], shrink_cause="")
    assert [solution.value(size) for size in (stream, heads)] == [1092, 1092]
    assert solve(system, Fraction(2), [stream], shrink_cause="").value(stream) == 1086


def test_a_part_of_a_fused_projection_stays_as_wide_as_the_stream_that_feeds_it() -> None:
    system: AxisSystem[str] = AxisSystem()
    stream, fused = system.variable(768), system.variable(2304)
    for size in (stream, fused, fused / 3, fused / 36):
        system.require_integer(size)
    solution = solve(system, Fraction(2), [stream, fused], shrink_cause="")
    assert (solution.value(stream), solution.value(fused)) == (1092, 3 * 1092)


def test_a_step_that_is_coarse_for_a_width_is_not_shared() -> None:
    system: AxisSystem[str] = AxisSystem()
    free, heads = system.variable(8), system.variable(8)
    system.require_integer(heads / 8)
    solution = solve(system, Fraction(2), [free, heads], shrink_cause="")
    assert [solution.value(size) for size in (free, heads)] == [11, 8]


def test_multiples_are_preferred_where_the_step_allows() -> None:
    system: AxisSystem[str] = AxisSystem()
    heads, free = system.variable(768), system.variable(100)
    system.require_integer(heads / 12)
    solution = solve(system, Fraction(2), [heads, free], round_to=8, shrink_cause="")
    assert solution.value(heads) % 24 == 0
    assert abs(solution.value(heads) - 1086.1) <= 12
    assert solution.value(free) == 144  # of 136 and 144, 141.4 is nearer to the latter
