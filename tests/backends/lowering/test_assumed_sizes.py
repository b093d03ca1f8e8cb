"""Sizes of usual runs: what they are simplified to, and what has to hold for that."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sift_onnx.backends.lowering.assumed_sizes import AssumedSizes, SizeProbe, holds, in_words
from sift_onnx.backends.lowering.cut_sizes import sliced
from sift_onnx.backends.lowering.dims import (
    Dim,
    added,
    bound,
    larger,
    modulo,
    product,
    smaller,
    subtracted,
    truncated,
    window,
)

CHANGES = st.lists(st.tuples(st.sampled_from("w/+-<>%cs"), st.integers(1, 9), st.integers(1, 5)), max_size=6)


def changed(size: Dim, kind: str, number: int, stride: int) -> Dim | None:
    match kind:
        case "w":
            return window(size, number, stride, 1, (0, 0))
        case "/":
            return truncated(size, number)
        case "+":
            return added((size, number))
        case "-":
            return added((size, -number))
        case "<":
            return smaller(size, 5 * number)
        case ">":
            return larger(size, number)
        case "%":
            return modulo(size, number)
        case "c":
            return product((number, size))
    return sliced(size, number, None)


@example([("%", 2, 1), ("w", 1, 1), (">", 1, 1)], 0, True)
@given(CHANGES, st.integers(0, 60), st.booleans())
def test_simplified_sizes_are_the_same_where_the_conditions_hold(
    changes: list[tuple[str, int, int]], height: int, divides: bool
) -> None:
    size: Dim = "h"
    for change in changes:
        made = changed(size, *change)
        assert made is not None
        size = made
    assumed = AssumedSizes(divides)
    usual = assumed.simplified(size)
    if all(holds(condition, {"h": height}) for condition in assumed.conditions):
        found = bound(size, {"h": height})
        assert not isinstance(found, int) or found < 0 or bound(usual, {"h": height}) == found


def test_frames_of_convolutions_are_what_torch_writes() -> None:
    """A window of an axis that is too short has no frames; the quotient has fewer than none."""
    frames = window(window("s", 10, 5, 1, (0, 0)), 3, 2, 1, (0, 0))
    written = added((truncated(added((truncated("s", 5), -4)), 2), 1))
    assert frames != written
    assumed = AssumedSizes()
    assert assumed.simplified(frames) == assumed.simplified(written)
    assert in_words(assumed.conditions) == "'s' of 20 or more"


def test_tables_are_as_long_as_what_is_cut_from_them() -> None:
    assumed = AssumedSizes()
    assert assumed.simplified(smaller("t", 64)) == "t"
    assert in_words(assumed.conditions) == "'t' from 0 to 64"
    assert assumed.simplified(added((larger(2, "t"), "n"))) == added(("t", "n"))
    assert in_words(assumed.conditions) == "'t' from 2 to 64"
    assert assumed.simplified(smaller("n", "t")) == smaller("n", "t")
    assert assumed.simplified(smaller(9, added(("n", "t")))) == added(("n", "t"))
    assert in_words(assumed.conditions) == "'t' from 2 to 64, usual 'n', usual 't'"


def test_a_probe_leaves_sizes_as_they_are() -> None:
    probe = SizeProbe()
    assert probe.dims((3, "t", added(("t", 4)), product((2, "t")))) == (3, "t", added(("t", 4)), product((2, "t")))
    assert not probe.simplifies
    assert probe.dims(("n", smaller("t", 64))) == ("n", smaller("t", 64))
    assert probe.simplifies


def test_what_never_holds_is_a_condition() -> None:
    assumed = AssumedSizes(divides=True)
    rest = window(modulo("h", 2), 1, 1, 1, (0, 0))
    assert assumed.simplified(larger(rest, 1)) == 0
    assert not all(holds(condition, {"h": height}) for condition in assumed.conditions for height in (0, 1))
    assert -1 in assumed.conditions


@pytest.mark.parametrize("size", [2, 64, 16000])
def test_one_size_is_named(size: int) -> None:
    assert in_words((subtracted("t", size), subtracted(size, "t"))) == f"'t' of {size}"


def test_axes_are_as_long_as_all_of_their_windows() -> None:
    assumed = AssumedSizes(divides=True)
    blocks = window("t", 4, 4, 1, (0, 0))
    assert assumed.simplified(product((4, blocks))) == "t"
    assert in_words(assumed.conditions) == "'t' of 0 or more, in steps of 4"
    assert assumed.simplified(product((2, "n", blocks))) == product(("n", window("t", 2, 2, 1, (0, 0))))
    assert assumed.simplified(product((12, blocks))) == product((3, "t"))
    assert assumed.simplified(product((3, blocks))) == product((3, blocks))
    padded = product((4, window("t", 1, 4, 1, (0, 0))))
    assert assumed.simplified(padded) == padded
    assert AssumedSizes().simplified(product((4, blocks))) == product((4, blocks))


def test_sizes_that_are_certain_need_nothing() -> None:
    assumed = AssumedSizes()
    for size in ("h", 7, window("h", 3, 2, 1, (1, 1)), product((2, "h", "w")), modulo("h", 4)):
        assert assumed.simplified(size) == size
    assert not assumed.conditions
