"""Assignments to slices become concatenations that compute the same, at any size; others stay."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from assigned_nets import END, Part, assigned, assigned_rows, integers, part_of
from nets import Net

from sift_onnx.backends.lowering.assigned_slices import with_joined_slices
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.model import Model

SIZES = (2, 7, 6)
DECLARED = ["batch", "length", 6]


def value_of(shape: tuple[int, ...]) -> np.ndarray:
    return (np.arange(np.prod(shape), dtype=np.float32) + 1000).reshape(shape)


def kinds(net: Net, others: dict[str, np.ndarray] | None = None) -> set[str]:
    """The operators of the rewritten graph, which computes in onnxruntime what the original does."""
    model = net.model()
    view = with_joined_slices(GraphView(Model.load(model)))
    for feeds in (net.feeds, *([others] if others else [])):
        wanted, found = (
            onnxruntime.InferenceSession(own.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
            for own in (model, view.proto)
        )
        for array, other in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(other, array)
    return {node.op_type for node in view.nodes}


@pytest.mark.parametrize(
    "parts",
    [
        (None, (1, END)), (None, (0, 3)), (None, (2, 5)), (None, (-2, END)), (None, (0, -3)), (None, None, (2, 4)),
        (None, None, (2, 6)), (None, None, (-9, 6)),
        (None, None), (None, 0), (None, -1), (None, None, 4), (0, (1, END), (0, 2)), (None, (1, END), (2, END)),
        (None, (0, -1), 5),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_one_number", [False, True])
def test_grids_of_ranges_and_places(parts: tuple[Part, ...], is_one_number: bool) -> None:
    net = Net(17)
    net.input("x", *SIZES, declared=DECLARED)
    value = part_of(net, "x", *parts)
    if is_one_number:
        value = net.op("Expand", net.constant(np.float32(3)), net.op("Shape", value))
    else:
        value = net.op("Mul", value, net.constant(np.float32(-2)))
    net.output(assigned(net, "x", value, *parts), *SIZES)
    for sizes in ((3, 9, 6), (1, 2, 6)):
        assert not {"ScatterND", "Range"} & kinds(net, {"x": value_of(sizes)})


@pytest.mark.parametrize("part", [(1, END), (0, 3), (2, 5), (-2, END), (0, -3), None])
@pytest.mark.parametrize("axis", [0, 1])
def test_ranges_of_a_turned_axis(axis: int, part: Part) -> None:
    net = Net(17)
    sizes, declared = (7, 2, 6) if axis == 0 else SIZES, ["length", 2, 6] if axis == 0 else DECLARED
    net.input("x", *sizes, declared=declared)
    value = net.op("Mul", part_of(net, "x", *[None] * axis, part), net.constant(np.float32(-2)))
    net.output(assigned_rows(net, "x", str(value), part, 3, axis), *sizes)
    other = [3 if size == 2 else 1 if size == 7 else size for size in sizes]
    others = [{"x": value_of(tuple(other))}, {"x": value_of(tuple(12 if n == 7 else n for n in sizes))}]
    assert not {"ScatterND", "Range"} & kinds(net, others[1])
    if axis == 1:
        assert not {"ScatterND", "Range"} & kinds(net, others[0])


@pytest.mark.parametrize("place", [0, -1, 3])
@pytest.mark.parametrize("is_open", [False, True])
def test_one_place_of_an_axis(is_open: bool, place: int) -> None:
    """Whether a place is there has to be known: a slice that ends behind an axis is no error, a place is one."""
    net = Net(17)
    x = net.input("x", *SIZES, declared=DECLARED if is_open else ["batch", 7, 6])
    value = net.op("Slice", x, integers(net, 1), integers(net, 2), integers(net, 1))
    places = net.op("Expand", net.constant([[[place]]], dtype="int64"), net.op("Shape", value))
    net.output(net.op("ScatterElements", x, places, value, axis=1), *SIZES)
    assert ("ScatterElements" in kinds(net)) == (is_open and place == 3)


def test_steps_stay() -> None:
    net = Net(17)
    net.input("x", *SIZES, declared=DECLARED)
    value = net.op("Exp", net.op("Slice", "x", *[integers(net, number) for number in (0, END, 1, 2)]))
    net.output(assigned(net, "x", value, None, (0, END), step=2), *SIZES)
    assert "ScatterND" in kinds(net)


def test_sums_stay() -> None:
    net = Net(18)
    net.input("x", *SIZES, declared=DECLARED)
    net.output(
        assigned(net, "x", net.op("Exp", part_of(net, "x", None, (1, END))), None, (1, END), reduction="add"), *SIZES
    )
    assert "ScatterND" in kinds(net)


def test_a_range_that_may_end_before_it_starts_stays() -> None:
    net = Net(17)
    net.input("x", *SIZES, declared=DECLARED)
    net.output(assigned(net, "x", net.op("Exp", part_of(net, "x", None, (2, -2))), None, (2, -2)), *SIZES)
    assert "ScatterND" in kinds(net, {"x": value_of((1, 3, 6))})


def test_positions_of_another_size_stay() -> None:
    """A range as long as another axis, whose size may be less."""
    net = Net(17)
    net.input("x", *SIZES, declared=DECLARED)
    other = net.input("y", 2, 4, 6, declared=["batch", "other", 6])
    size = net.op("Gather", net.op("Shape", other), net.constant(1, dtype="int64"), axis=0)
    found = net.op("Range", net.constant(0, dtype="int64"), size, net.constant(1, dtype="int64"))
    turned = [net.op("Transpose", name, perm=[1, 0, 2]) for name in ("x", other)]
    places = net.op("Unsqueeze", found, integers(net, -1))
    net.output(net.op("ScatterND", turned[0], places, turned[1]), 7, 2, 6)
    assert "ScatterND" in kinds(net)


def test_axes_in_another_order_stay() -> None:
    """Places (i, j) that go along j first: what is assigned is turned."""
    net = Net(17)
    net.input("x", 4, 4, declared=["n", "n"])
    size = net.op("Gather", net.op("Shape", "x"), net.constant(0, dtype="int64"), axis=0)
    found = net.op("Range", net.constant(0, dtype="int64"), size, net.constant(1, dtype="int64"))
    lines = [net.op("Reshape", found, integers(net, *target)) for target in ((1, -1), (-1, 1))]
    shape = net.op("Shape", net.op("Add", *lines))
    columns = [net.op("Unsqueeze", net.op("Expand", line, shape), integers(net, -1)) for line in lines]
    net.output(net.op("ScatterND", "x", net.op("Concat", *columns, axis=-1), net.op("Exp", "x")), 4, 4)
    assert "ScatterND" in kinds(net)
