"""Sizes as expressions."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sift_onnx.backends.lowering.cut_sizes import counted_from_end, sliced
from sift_onnx.backends.lowering.dims import (
    added,
    bound,
    cut,
    difference,
    floored,
    is_at_least,
    larger,
    modulo,
    names_in,
    product,
    quotient,
    remainder,
    smaller,
    solved,
    subtracted,
    truncated,
    window,
)

# Kernel, stride, dilation and pads; what is divided by; and what is added or taken off.
WINDOWS = st.tuples(*(st.integers(1, most) for most in (5, 4, 2)), st.tuples(st.integers(0, 3), st.integers(0, 3)))
CHANGES = st.one_of(WINDOWS, st.tuples(st.integers(1, 6)), st.integers(-4, 5))


def test_sizes_that_are_provably_equal():
    assert product(["n", 4, 2]) == product([8, "n"])
    assert quotient(product(["n", 128, 512]), 512) == product(["n", 128])
    assert window("h", 3, 1, 1, (1, 1)) == "h"
    assert window("h", 3, 2, 1, (1, 1)) != "h"
    assert window(9, 2, 2, 1, (0, 0), ceil_mode=True) == 5


@pytest.mark.parametrize("pads", [(0, 0), (2, 0), (4, 4)])
@pytest.mark.parametrize("before", [0, 1, 4])
@pytest.mark.parametrize("size", [0, 1, 3, 9])
def test_windows_of_what_was_padded(pads, before, size):
    made = window(added([before, "h"]), 3, 1, 2, pads)
    assert bound(made, {"h": size}) == window(before + size, 3, 1, 2, pads)


@given(st.integers(2, 5), st.integers(1, 4), st.integers(-9, 9), st.integers(1, 6), st.integers(0, 20))
def test_windows_of_an_axis_of_whole_strides(stride: int, times: int, number: int, kernel: int, size: int) -> None:
    found = window(added((product((stride * times, "s")), number)), kernel, stride, 1, (0, 0))
    length = stride * times * size + number
    if length >= 0:
        assert bound(found, {"s": size}) == window(length, kernel, stride, 1, (0, 0))
    if number - kernel >= -stride:
        assert found == added((product((times, "s")), (number - kernel) // stride + 1))


def test_padding_before_a_window_gives_the_size_that_it_was_added_to():
    assert window(added([4, "h"]), 3, 1, 2, (0, 0)) == "h"
    assert window("h", 3, 1, 2, (4, 4)) == added([4, "h"])
    assert window("h", 3, 1, 2, (4, 4), ceil_mode=True) == added([4, "h"])
    # The last window may begin in the padding, and is left out then.
    assert window("h", 3, 1, 2, (4, 5), ceil_mode=True) != added([5, "h"])


@given(WINDOWS, st.integers(0, 30))
def test_the_last_window_may_reach_beyond_the_padding(geometry, size):
    kernel, stride, dilation, pads = geometry
    expression = window("h", kernel, stride, dilation, pads, ceil_mode=True)
    found = bound(expression, {"h": size})
    assert found in (window(size, kernel, stride, dilation, pads, ceil_mode=True), expression)


def test_windows_of_windows_are_what_exporters_write_for_both():
    """torch writes the height behind two convolutions of stride two as one quotient."""
    twice = window(window("h", 3, 2, 1, (1, 1)), 3, 2, 1, (1, 1))
    assert twice == added([floored(difference("h", 1), 4), 1])
    assert window("h", 2, 2, 1, (0, 0)) == floored("h", 2)
    assert window(window("h", 2, 2, 1, (0, 0)), 2, 2, 1, (0, 0)) == floored("h", 4)
    assert floored("h", "n") is None
    assert floored(product([-1, "h"]), 4) is None
    assert floored(7, 2) == 3
    assert floored(-7, 2) is None


@given(st.integers(-3, 3), st.integers(-9, 9), st.integers(-5, 5), st.integers(0, 30))
def test_what_a_division_leaves_is_known_of_multiples(factor, number, part, size):
    found = remainder(added([product([factor, "n"]), number]), part)
    assert (found is None) == (part == 0 or factor % part != 0)
    assert found is None or found == (factor * size + number) % part
    assert remainder("n", "n") is None


@given(st.lists(CHANGES, max_size=4), st.integers(0, 60))
def test_expressions_of_windows_and_quotients_are_the_sizes_of_a_run(changes, height):
    expression, size = "h", height
    for change in changes:
        if isinstance(change, int):
            next_one = difference(expression, -change) if change < 0 else added([expression, change])
            after = size + change
        elif len(change) == 1:
            next_one, after = floored(expression, *change), size // change[0]
        else:
            next_one, after = window(expression, *change), window(size, *change)
        if next_one is None or after < 0:
            continue
        expression, size = next_one, after
        assert bound(expression, {"h": height}) == size


@example([("%", 2), ("c", 2), ("<", 2)], 0, 0)
@given(
    st.lists(st.tuples(st.sampled_from("%/+-<>wc"), st.integers(1, 9)), max_size=5),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_expressions_of_remainders_and_bounds_are_the_sizes_of_a_run(changes, height, width):
    """They are exact, of other sizes than those of axes too."""
    known = {"h": height, "w": width}
    expression, size = "h", height
    for kind, number in changes:
        if kind == "%":
            expression, size = modulo(expression, number), size % number
        elif kind == "/" and size >= 0:
            expression, size = truncated(expression, number), size // number
        elif kind in "+-":
            change = number if kind == "+" else -number
            expression, size = added([expression, change]), size + change
        elif kind == "<":
            expression, size = smaller(expression, number), min(size, number)
        elif kind == ">":
            expression, size = larger(expression, number), max(size, number)
        elif kind == "w":
            expression, size = subtracted("w", expression), width - size
        elif kind == "c":
            expression, size = product([number, expression]), number * size
        if size < 0:
            return
        assert bound(expression, known) == size


@given(
    st.lists(st.tuples(st.sampled_from("%/+-<w"), st.integers(1, 9)), max_size=4),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_what_is_known_to_be_at_least_another_size_is(changes, height, width):
    known = {"h": height, "w": width}
    sizes = ["h", "w", 3, window("h", 1, 4, 1, (0, 0)), product([4, window("h", 1, 4, 1, (0, 0))])]
    for kind, number in changes:
        size = sizes[-1]
        made = {"%": modulo(size, number), "/": floored(size, number), "+": added([size, number]),
                "-": window(size, number, 1, 1, (0, 0)), "<": smaller(size, number),
                "w": modulo(size, "w")}[kind]  # fmt: skip
        if made is not None and not (kind == "w" and width == 0):
            sizes.append(made)
    for first in sizes:
        for second in sizes:
            if is_at_least(first, second):
                assert bound(first, known) >= bound(second, known)
            assert bound(cut(first, second), known) == min(bound(first, known), bound(second, known))


def test_images_are_padded_to_whole_windows():
    """Exporters write what is missing as a remainder of a remainder."""
    for missing in (modulo(subtracted(8, modulo("h", 8)), 8), modulo(product([-1, "h"]), 8)):
        padded = added(["h", missing])
        assert padded == product([8, window("h", 1, 8, 1, (0, 0))])
        assert is_at_least(padded, "h")
        assert is_at_least(missing, 0)
        assert cut(padded, "h") == "h"
    assert not is_at_least("h", padded)


@pytest.mark.parametrize("end", [1, 2, 5])
def test_parts_of_a_rolled_axis_are_all_of_it(end):
    size = product([4, "h"])
    assert added([sliced(size, -end, None), sliced(size, 0, -end)]) == size
    first = modulo(-end, size)
    assert added([subtracted(size, cut(size, first)), cut(size, first)]) == size


def test_names_stand_for_the_numbers_of_a_run():
    known = {"n": 2, "h": 9}
    assert bound(product(["n", "h", 3]), known) == 54
    assert bound(quotient(product(["h", "t"]), "n"), known) == quotient(product([9, "t"]), 2)
    for pads in ((1, 1), (0, 0)):
        assert bound(window("h", 3, 2, 2, pads), known) == window(9, 3, 2, 2, pads)
    assert bound(cut(512, "n"), known) == 2
    assert bound(cut(512, "t"), known) == cut(512, "t")
    assert names_in(product(["n", "t", 4])) == {"n", "t"}


def test_a_number_beside_a_multiple_of_a_sum_is_part_of_it():
    assert added((4, product((4, added((-2, "s")))))) == product((4, added((-1, "s"))))
    assert added((8, product((4, added((-2, "s")))))) == product((4, "s"))
    assert added((3, product((4, added((-2, "s")))))) == ("sum", 3, product((4, added((-2, "s")))))


def test_the_only_open_name_of_two_equal_sizes():
    assert solved(product(["t", "n", 256]), product([128, 4, "n", 64])) == ("t", 128)
    assert solved(product([128, "n"]), product(["t", "n", 2])) == ("t", 64)
    assert solved(product(["t", "n"]), 64) is None
    assert solved(product(["t", 3]), 64) is None
    assert solved("t", "t") is None


def test_sums_know_their_terms_in_any_order():
    whole = added(["past", 3, "new", -3])
    assert whole == added(["new", "past"]) == ("sum", 0, "new", "past")
    assert added(["past", 0]) == "past"
    assert added([2, 3]) == 5
    assert difference(whole, "new") == "past"
    assert difference(whole, added(["new", 2])) == added(["past", -2])
    assert difference("past", "new") is None
    assert bound(whole, {"past": 4}) == added([4, "new"])
    assert bound(whole, {"past": 4, "new": 1}) == 5
    assert names_in(whole) == {"past", "new"}


@settings(max_examples=300, deadline=None)
@given(
    start=st.integers(-6, 6),
    stop=st.none() | st.integers(-6, 8) | st.just(2**63 - 1),
    step=st.integers(1, 3),
    size=st.integers(0, 12),
)
def test_what_a_slice_leaves_of_an_open_axis_is_what_it_leaves_in_a_run(
    start: int, stop: int | None, step: int, size: int
) -> None:
    wanted = len(range(size)[start:stop:step])
    assert sliced(size, start, stop, step) == wanted
    for axis in ("t", added(["t", "u"]), product([2, "t"])):
        found = sliced(axis, start, stop, step)
        if found is None:
            assert start < 0 <= (0 if stop is None else stop)
            continue
        for known in ({"t": size, "u": 0}, {"t": size, "u": 3}):
            own = bound(axis, known)
            assert isinstance(own, int)
            assert bound(found, known) == len(range(own)[start:stop:step])


@given(st.integers(0, 9), st.integers(0, 9), st.integers(-4, 4), st.integers(0, 4), st.booleans())
def test_bounds_counted_from_the_end(n: int, t: int, more: int, number: int, is_two: bool) -> None:
    """Slices of an axis of several parts, at a bound that is some of them, leave the same."""
    size, limit = added(["n", "t", number] if is_two else ["n", number]), added(["n", more])
    length, place = n + number + t * is_two, n + more
    found = counted_from_end(size, limit)
    if isinstance(found, int):
        assert range(length)[:found] == range(length)[:place]
        assert range(length)[found:] == range(length)[place:]
    known = {"n": n, "t": t}
    assert bound(cut(size, limit), known) == min(length, place)
