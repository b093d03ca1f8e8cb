"""Names of open sizes that meet, and what is taken for equal of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from nets import Net

from sift_onnx.backends.lowering.assumed_sizes import AssumedSizes
from sift_onnx.backends.lowering.dims import Dim, added, bound, broadcast, cut, floored, names_in, product, window
from sift_onnx.backends.lowering.equal_sizes import (
    NOTHING_EQUAL,
    EqualSizes,
    OpenAxis,
    taken_for_equal,
    with_conditions,
)
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.meeting_sizes import equated, names_that_meet, numbers_that_meet
from sift_onnx.model import Model

NAMES = st.sampled_from(["a", "b", "c"])
NUMBERS = st.integers(1, 4)


def changed(size: Dim, number: int, kind: str) -> Dim:
    if kind == "window":
        return window(size, number, 2, 1, (1, 0))
    if kind == "floored":
        return floored(size, number) or size
    return {"added": added, "product": product}[kind]((size, number))


KINDS = st.sampled_from(["added", "product", "window", "floored"])
SIZES = st.recursive(
    NAMES,
    lambda inner: st.one_of(
        st.builds(changed, inner, NUMBERS, KINDS),
        st.builds(lambda a, b: added((a, b)), inner, inner),
        st.builds(lambda a, b: product((a, b)), inner, inner),
        st.builds(broadcast, inner, inner),
    ),
    max_leaves=4,
)


# Recursive strategies take long to set up where processors are busy.
SLOWLY_DRAWN = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SLOWLY_DRAWN
@given(SIZES, SIZES, st.tuples(*[st.integers(1, 9)] * 3))
def test_sizes_are_equal_in_all_runs_where_the_names_are(first: Dim, second: Dim, values: tuple[int, ...]) -> None:
    names = equated(first, second)
    if names is not None:
        kept, other = names
        sizes: dict[str, Dim] = dict(zip("abc", values, strict=True))
        sizes[other] = sizes[kept]
        assert bound(first, sizes) == bound(second, sizes)


@SLOWLY_DRAWN
@given(SIZES, st.sampled_from(["a", "b"]))
@example(changed(changed("b", 4, "window"), 1, "window"), "b")
def test_a_size_and_the_same_of_another_name_are_equated(size: Dim, name: str) -> None:
    other = bound(size, {name: "z"})
    expected = (name, "z") if name in names_in(size) else None
    if expected is not None:
        assert equated(size, other) == expected
    assert equated(size, size) is None


@SLOWLY_DRAWN
@given(SIZES, st.tuples(*[st.integers(1, 9)] * 3))
def test_new_names_can_be_bound_as_the_old_ones(size: Dim, values: tuple[int, ...]) -> None:
    renamed = bound(size, {"a": "b"})
    assert "a" not in names_in(renamed)
    assert bound(renamed, dict(zip("bc", values[1:], strict=True))) == bound(
        size, dict(zip("abc", (values[1], *values[1:]), strict=True))
    )


def test_pairs_that_say_nothing() -> None:
    assert equated("a", 3) is None
    assert equated("a", added(("b", 1))) is None
    assert equated(product(("a", "b")), product(("c", "d"))) is None
    assert equated(cut(77, "a"), "b") == ("a", "b")


def met(kind: str, first: tuple[Any, ...], second: tuple[Any, ...], **attributes: Any) -> list[tuple[str, str]]:
    net = Net()
    x, y = (
        net.input(name, *(size if isinstance(size, int) else 2 for size in declared), declared=list(declared))
        for name, declared in (("x", first), ("y", second))
    )
    net.op(kind, x, y, **attributes)
    net.output(net.op("Relu", x), *(size if isinstance(size, int) else 2 for size in first))
    return names_that_meet(GraphView(Model.load(net.model())))


@pytest.mark.parametrize(
    ("kind", "first", "second", "attributes", "pairs"),
    [
        ("Add", ("n", 3), ("m", 3), {}, [("n", "m")]),
        ("Add", ("n", 3), ("m", 1, 3), {}, []),
        ("Mul", ("t", 2), ("n", "s", 2), {}, [("t", "s")]),
        ("Concat", ("n", "t"), ("m", "s"), {"axis": 1}, [("n", "m")]),
        ("Concat", ("n", "t"), ("m", "s"), {"axis": -2}, [("t", "s")]),
        ("MatMul", ("n", 2, "k"), ("m", "l", 2), {}, [("k", "l"), ("n", "m")]),
        ("MatMul", (3, "k"), ("l",), {}, [("k", "l")]),
        ("Gemm", ("k", "n"), ("m", "l"), {"transA": 1, "transB": 1}, [("k", "l")]),
        ("Einsum", ("n", "k"), ("k2", "m"), {"equation": "ik,kj->ij"}, [("k", "k2")]),
    ],
)
def test_what_meets_in_an_operator(
    kind: str, first: tuple[Any, ...], second: tuple[Any, ...], attributes: Mapping[str, Any], pairs: list[Any]
) -> None:
    assert met(kind, first, second, **attributes) == pairs


@pytest.mark.parametrize(
    ("kind", "front"), [("Expand", [0, 1]), ("Reshape", [0, 1]), ("Reshape", [0])], ids=["expand", "reshape", "open"]
)
def test_what_meets_the_sizes_of_another_tensor(kind: str, front: list[int]) -> None:
    net = Net()
    x, y = (net.input(name, 2, 3, declared=[size, 3]) for name, size in (("x", "n"), ("y", "m")))
    target = net.op("Gather", net.op("Shape", y), net.constant(front))
    target = target if len(front) == 2 else net.op("Concat", target, net.constant([-1]), axis=0)
    net.output(net.op(kind, x, target), 2, 3)
    assert names_that_meet(GraphView(Model.load(net.model()))) == [("n", "m")]


def chain() -> GraphView:
    """Sizes meet only once others are taken for equal."""
    net = Net()
    sizes = {"x": ["n", "t"], "y": ["m", "t"], "z": ["k", "s"]}
    x, y, z = (net.input(name, 2, 3, declared=declared) for name, declared in sizes.items())
    net.output(net.op("Add", net.op("Add", x, y), z), 2, 3)
    return GraphView(Model.load(net.model()))


def test_groups_grow_until_nothing_else_meets() -> None:
    graph = chain()
    equal, view = taken_for_equal(graph, graph.with_names, {})
    assert equal.names == {"m": "n", "k": "n", "s": "t"}
    assert equal.text == "planned for equal sizes 'n', 'm', 'k' and 't', 's'"
    assert view.dims("z") == ("n", "t")
    assert graph.dims("z") == ("k", "s")


def test_given_sizes_that_differ_stay_apart() -> None:
    graph = chain()
    equal, _ = taken_for_equal(graph, graph.with_names, {"x": (2, 3), "z": (1, 3)})
    assert "k" not in equal.names
    assert equal.names["m"] == "n"


def test_only_numbers_that_no_other_number_contradicts_meet_a_name() -> None:
    net = Net()
    x = net.input("x", 4, 5, 6, declared=["n", "t", "s"])
    for shape in ((1, 1), (5, 1), (1, 6), (1, 7)):
        net.output(net.op("Add", x, net.constant(np.ones(shape, np.float32))), 4, 5, 6)
    assert numbers_that_meet(GraphView(Model.load(net.model()))) == {"t": 5}


def test_the_first_difference_is_named() -> None:
    equal = EqualSizes(((OpenAxis("n", "x", 0), OpenAxis("m", "y", 1)), (OpenAxis("t", "x", 1), OpenAxis("s", "z", 0))))
    feeds = {"x": np.zeros((2, 3)), "y": np.zeros((4, 2)), "z": np.zeros(3)}
    assert equal.difference_of(feeds) == ""
    assert equal.difference_of(feeds | {"z": np.zeros(1)}) == "'s' is 1 in input 'z', and 't' is 3 in input 'x'"
    assert equal.difference({"y": (4, 7)}) == ""


def test_what_no_run_fulfils_is_not_planned_for() -> None:
    assumed = AssumedSizes()
    assumed.conditions[-1] = None
    assert with_conditions(NOTHING_EQUAL, chain(), assumed) is None
