"""Where old features lie in wider axes: cuts, and how they flow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sift_onnx.feature_maps.system import FeatureMapError, FeatureMapSystem, Piece


def places(system: FeatureMapSystem[str], axis: int) -> list[int]:
    return system.positions(axis).tolist()


def test_an_axis_by_itself_starts_with_its_old_features() -> None:
    system: FeatureMapSystem[str] = FeatureMapSystem()
    assert places(system, system.axis(3, 7)) == [0, 1, 2]


def test_an_axis_does_not_become_shorter() -> None:
    with pytest.raises(ValueError, match="cannot become"):
        FeatureMapSystem().axis(3, 2)


def test_parts_of_an_axis_start_where_they_are_joined() -> None:
    system: FeatureMapSystem[str] = FeatureMapSystem()
    whole, a, b = system.axis(5, 11), system.axis(2, 5), system.axis(3, 6)
    system.composed(whole, [Piece(a, 0, 0), Piece(b, 2, 5)], "concat")
    system.settle()
    assert places(system, whole) == [0, 1, 5, 6, 7]


def test_a_cut_goes_back_to_where_an_axis_is_made() -> None:
    """A sum of a concatenation and a plain axis: the plain one lies like the concatenation."""
    system: FeatureMapSystem[str] = FeatureMapSystem()
    whole, a, b, plain = system.axis(5, 11), system.axis(2, 5), system.axis(3, 6), system.axis(5, 11)
    system.composed(plain, [Piece(whole, 0, 0)], "add")
    system.composed(whole, [Piece(a, 0, 0), Piece(b, 2, 5)], "concat")
    system.settle()
    assert places(system, plain) == [0, 1, 5, 6, 7]


def test_features_of_several_places_stay_whole() -> None:
    system: FeatureMapSystem[str] = FeatureMapSystem()
    flat, channels = system.axis(6, 12), system.axis(2, 4)
    system.composed(flat, [Piece(channels, 0, 0, inner=3)], "flatten")
    part = system.axis(3, 9)
    system.composed(flat, [Piece(part, 3, 3)], "split")
    system.settle()
    assert places(system, flat) == [0, 1, 2, 3, 4, 5]


def test_groups_of_one_axis_have_the_same_cuts() -> None:
    system: FeatureMapSystem[str] = FeatureMapSystem()
    whole, group = system.axis(8, 16), system.axis(4, 8)
    system.composed(whole, [Piece(group, 0, 0), Piece(group, 4, 8)], "groups")
    half = system.axis(2, 4)
    system.composed(whole, [Piece(half, 0, 0)], "split")
    system.settle()
    assert places(system, group) == [0, 1, 4, 5]
    assert places(system, whole) == [0, 1, 4, 5, 8, 9, 12, 13]


def test_a_cut_before_a_feature_leaves_places_free_that_hold_no_whole_one() -> None:
    system: FeatureMapSystem[str] = FeatureMapSystem()
    flat, channels, rest = system.axis(6, 15), system.axis(2, 5), system.axis(3, 10)
    system.composed(flat, [Piece(channels, 0, 0, inner=3)], "flatten")
    system.composed(flat, [Piece(rest, 3, 5)], "split")
    system.settle()
    assert places(system, channels) == [0, 2]
    assert places(system, rest) == [1, 2, 3]


@pytest.mark.parametrize("new", [4, 6])
def test_a_cut_through_a_feature_holds_only_where_the_feature_can_lie(new: int) -> None:
    system: FeatureMapSystem[str] = FeatureMapSystem()
    flat, channels, rest = system.axis(6, 15), system.axis(2, 5), system.axis(5, 15 - new)
    system.composed(flat, [Piece(channels, 0, 0, inner=3)], "flatten")
    system.composed(flat, [Piece(rest, 1, new)], "split")
    if new % 3 == 1:
        system.settle()
        assert places(system, channels) == [1, 2]
        return
    with pytest.raises(FeatureMapError, match="3 places") as caught:
        system.settle()
    assert caught.value.cause == "flatten"


def test_what_does_not_fit_names_the_relation() -> None:
    system: FeatureMapSystem[str] = FeatureMapSystem()
    whole, a, b = system.axis(4, 8), system.axis(3, 4), system.axis(2, 4)
    system.composed(whole, [Piece(a, 0, 0)], "first")
    system.composed(whole, [Piece(b, 1, 3)], "second")
    with pytest.raises(FeatureMapError, match="would have to lie in") as caught:
        system.settle()
    assert caught.value.cause in ("first", "second")


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=6), st.integers(1, 3))
def test_a_composed_axis_lies_like_its_pieces(parts: list[tuple[int, int]], inner: int) -> None:
    system: FeatureMapSystem[str] = FeatureMapSystem()
    sizes = [(old, old + more) for old, more in parts]
    whole = system.axis(inner * sum(o for o, _ in sizes), inner * sum(n for _, n in sizes))
    pieces: list[Piece] = []
    old = new = 0
    for o, n in sizes:
        pieces.append(Piece(system.axis(o, n), old, new, inner))
        old, new = old + o * inner, new + n * inner
    system.composed(whole, pieces, "join")
    system.settle()
    expected = [p.new + place * inner + k for p in pieces for place in places(system, p.axis) for k in range(inner)]
    assert places(system, whole) == expected
