"""Where growth goes in a reshape."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_onnx.analysis.axes.reshape import reshape
from sift_onnx.analysis.axes.sizes import Axis, size_of
from sift_onnx.analysis.axes.solution import Solution, solve
from sift_onnx.analysis.axes.system import AxisSystem

HUGE = Fraction(10**12)


def product(axes: list[Axis], solution: Solution) -> Fraction:
    return math.prod((solution.exact(axis.size) for axis in axes), start=Fraction(1))


def cause(reason: str) -> str:
    return reason


def fixed(*sizes: int) -> list[Axis]:
    return [Axis(size_of(n)) for n in sizes]


def growing(system: AxisSystem[str], n: int) -> Axis:
    return Axis(system.variable(n), 1, n)


def cut(draw: st.DrawFn, digits: list[int]) -> list[list[int]]:
    """The positions of ``digits`` in groups of neighbours."""
    edges = sorted(draw(st.sets(st.integers(1, max(1, len(digits) - 1)), max_size=3)))
    edges = [0, *(e for e in edges if e < len(digits)), len(digits)]
    return [list(range(a, b)) for a, b in pairwise(edges)]


@st.composite
def factorizations(draw: st.DrawFn) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Digits of a mixed radix, and two ways of joining neighbours to axes; ones anywhere."""
    digits = draw(st.lists(st.integers(1, 8), min_size=1, max_size=6))
    return digits, cut(draw, digits), cut(draw, digits)


def joined(digits: list[int], groups: list[list[int]]) -> list[int]:
    return [math.prod(digits[i] for i in group) for group in groups]


@settings(deadline=None, max_examples=200)
@given(factorizations(), st.data())
def test_a_reshape_keeps_the_number_of_elements_and_undoing_it_restores_every_size(
    case: tuple[list[int], list[list[int]], list[list[int]]], data: st.DataObject
) -> None:
    digits, left, right = case
    system: AxisSystem[str] = AxisSystem()
    sizes = joined(digits, left)
    varies = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    before = [
        growing(system, n) if grows and n > 1 else Axis(size_of(n)) for n, grows in zip(sizes, varies, strict=True)
    ]
    from_inside = data.draw(st.integers(0, 2))
    after = reshape(system, before, joined(digits, right), cause, from_inside=from_inside)
    again = reshape(system, after, sizes, cause, from_inside=from_inside)
    solution = solve(system, Fraction(7), [axis.size for axis in before], shrink_cause="")
    assert product(before, solution) == product(after, solution) == product(again, solution)
    assert [solution.value(axis.size) for axis in again] == [solution.value(axis.size) for axis in before]
    assert all(solution.value(axis.size) >= n for axis, n in zip(after, joined(digits, right), strict=True))


@settings(deadline=None, max_examples=200)
@given(factorizations(), st.data())
def test_growth_of_one_factor_lands_in_the_axis_that_holds_it_at_its_stride(
    case: tuple[list[int], list[list[int]], list[list[int]]], data: st.DataObject
) -> None:
    digits, _, right = case
    place = data.draw(st.integers(0, len(digits) - 1))
    digits[place] += 1  # a size of one does not grow
    system: AxisSystem[str] = AxisSystem()
    before = fixed(*digits)
    before[place] = growing(system, digits[place])
    after = reshape(system, before, joined(digits, right), cause)
    solution = solve(system, HUGE, [before[place].size], shrink_cause="")
    width = solution.value(before[place].size)
    assert width > digits[place]
    for axis, group in zip(after, right, strict=True):
        if place not in group:
            assert axis.size == size_of(math.prod(digits[i] for i in group))
            continue
        inner = math.prod(digits[i] for i in group if i > place)
        outer = math.prod(digits[i] for i in group if i < place)
        assert solution.value(axis.size) == outer * width * inner
        assert (axis.stride, axis.span) == (inner, digits[place])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.data())
def test_any_reshape_keeps_the_number_of_elements(sizes: list[int], data: st.DataObject) -> None:
    """Also where the factors of the two sides do not nest."""
    total, new = math.prod(sizes), []
    while total > 1 and len(new) < 4:
        new.append(data.draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0])))
        total //= new[-1]
    new.append(total)
    system: AxisSystem[str] = AxisSystem()
    before = fixed(*sizes)
    place = data.draw(st.integers(0, len(sizes) - 1))
    if sizes[place] > 1:
        before[place] = growing(system, sizes[place])
    after = reshape(system, before, new, cause)
    assert all(axis.span > 1 for axis in after if not system.resolve(axis.size).is_constant)
    again = reshape(system, after, sizes, cause)
    solution = solve(system, Fraction(7), [before[place].size], shrink_cause="")
    assert product(before, solution) == product(after, solution)
    assert [solution.value(axis.size) for axis in again] == [solution.value(axis.size) for axis in before]


def test_flattened_channels_are_found_again() -> None:
    system: AxisSystem[str] = AxisSystem()
    channels = growing(system, 64)
    (flat,) = reshape(system, [channels, *fixed(7, 7)], [3136], cause)
    assert flat == Axis(channels.size * 49, 49, 64)
    assert reshape(system, [flat], [64, 7, 7], cause) == [Axis(channels.size, 1, 64), *fixed(7, 7)]


def test_a_width_split_in_heads_grows_inside_the_heads() -> None:
    system: AxisSystem[str] = AxisSystem()
    width = growing(system, 768)
    heads = reshape(system, [*fixed(2, 5), width], [2, 5, 12, 64], cause)
    assert heads == [*fixed(2, 5, 12), Axis(width.size / 12, 1, 64)]
    assert solve(system, Fraction(2), [width.size], shrink_cause="").value(heads[-1].size) == 91
    transposed = [heads[0], heads[2], heads[1], heads[3]]
    back = reshape(system, [transposed[0], transposed[2], transposed[1], transposed[3]], [2, 5, 768], cause)
    assert back[-1].size == width.size


def test_a_width_split_in_heads_can_grow_in_their_number() -> None:
    system: AxisSystem[str] = AxisSystem()
    width = growing(system, 768)
    heads = reshape(system, [width], [12, 64], cause, from_inside=1)
    assert heads == [Axis(width.size / 64, 1, 12), *fixed(64)]
    (back,) = reshape(system, heads, [768], cause, from_inside=1)
    assert back == Axis(width.size, 64, 12)


@pytest.mark.parametrize(
    ("groups", "after"), [(1, [1, 3136]), (32, [32, 98]), (64, [64, 49])], ids=["layer", "group", "instance"]
)
def test_channels_in_normalization_groups(groups: int, after: list[int]) -> None:
    system: AxisSystem[str] = AxisSystem()
    channels = growing(system, 64)
    before = [*fixed(2), channels, *fixed(7, 7)]
    grouped = reshape(system, before, [2, *after], cause)
    back = reshape(system, grouped, [2, 64, 7, 7], cause)
    value = solve(system, Fraction(4), [channels.size], shrink_cause="").value
    assert [value(axis.size) for axis in back] == [2, 128, 7, 7]
    # As many groups as channels means one channel a group: the number of groups grows. Otherwise the groups widen.
    expected = [2, 128, 49] if groups == 64 else [2, after[0], 2 * after[1]]
    assert [value(axis.size) for axis in grouped] == expected


def test_the_unfolding_of_mobilevit() -> None:
    """``[B, C, H, W]`` to patches, as four reshapes and two transposes; C must come out where it went in."""
    system: AxisSystem[str] = AxisSystem()
    channels = growing(system, 96)
    image = [*fixed(1), channels, *fixed(16, 16)]
    a = reshape(system, image, [96 * 8, 2, 8, 2], cause)
    assert a[0] == Axis(channels.size * 8, 8, 96)
    b = reshape(system, [a[0], a[2], a[1], a[3]], [1, 96, 64, 4], cause)
    assert b == [*fixed(1), Axis(channels.size, 1, 96), *fixed(64, 4)]
    tokens = reshape(system, [b[0], b[3], b[2], b[1]], [4, 64, 96], cause)
    assert tokens == [*fixed(4, 64), Axis(channels.size, 1, 96)]
    c = reshape(system, tokens, [1, 4, 64, 96], cause)
    d = reshape(system, [c[0], c[3], c[2], c[1]], [96 * 8, 8, 2, 2], cause)
    e = reshape(system, [d[0], d[2], d[1], d[3]], [1, 96, 16, 16], cause)
    assert [axis.size for axis in e] == [axis.size for axis in image]


def test_the_channel_shuffle_of_shufflenet() -> None:
    """``cat`` of two halves, ``[2, v]``, transposed, flat again, split: each half comes out as wide as it went in."""
    system: AxisSystem[str] = AxisSystem()
    half = growing(system, 58)
    both = [*fixed(1), Axis(half.size + half.size, 1, 58), *fixed(28, 28)]
    pairs = reshape(system, both, [1, 2, 58, 28, 28], cause)
    assert [axis.size for axis in pairs[1:3]] == [size_of(2), half.size]
    flat = reshape(system, [pairs[0], pairs[2], pairs[1], *pairs[3:]], [1, 116, 28, 28], cause)
    assert flat[1] == Axis(half.size * 2, 2, 58)
    assert solve(system, Fraction(4), [half.size], shrink_cause="").value(flat[1].size / 2) == 116


def test_of_two_axes_that_are_merged_only_one_grows() -> None:
    system: AxisSystem[str] = AxisSystem()
    a, b = growing(system, 6), growing(system, 10)
    (flat,) = reshape(system, [a, b], [60], cause)
    assert system.why_pinned(a.size) == "a reshape merges it with another axis that grows"
    assert flat.size == b.size * 6


def test_a_split_without_a_place_for_growth_pins_it() -> None:
    system: AxisSystem[str] = AxisSystem()
    a = growing(system, 6)
    assert reshape(system, [a, *fixed(4)], [8, 3], cause) == fixed(8, 3)
    assert system.why_pinned(a.size) == "a reshape splits it in a way that has no place for growth"


def test_axes_of_size_one_come_and_go() -> None:
    system: AxisSystem[str] = AxisSystem()
    width = growing(system, 64)
    spread = reshape(system, [*fixed(1), width, *fixed(1)], [64, 1, 1], cause)
    assert [axis.size for axis in spread] == [width.size, size_of(1), size_of(1)]


def test_an_empty_tensor_is_reshaped_to_what_it_was() -> None:
    system: AxisSystem[str] = AxisSystem()
    width = growing(system, 64)
    assert reshape(system, [*fixed(0), width], [0, 8, 8], cause) == fixed(0, 8, 8)
    assert system.why_pinned(width.size) == "a reshape of an empty tensor"
