"""What has no elements is not joined, and everything else stays what it is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from nets import Net
from onnx.reference import ReferenceEvaluator

from sift_onnx.backends.lowering.empty_operands import without_empty_operands
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.model import Model


def rewritten(net: Net) -> list[str]:
    """The operators that are left, which compute what the model did."""
    model = net.model()
    graph = GraphView(Model.load(model))
    view = without_empty_operands(graph)
    onnx.checker.check_model(view.proto)
    wanted, found = (ReferenceEvaluator(own).run(None, net.feeds) for own in (model, view.proto))
    for array, other in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(array, other)
    # Each old node has another in its place, which reports name it with.
    assert [node for node, _ in view.origin] == list(graph.nodes)
    assert all(index in range(len(view.nodes)) for _, index in view.origin)
    return [node.op_type for node in view.nodes]


def ints(net: Net, *values: int) -> str:
    return net.constant(values, dtype=np.int64)


def cut(net: Net, x: str, start: int, end: int) -> str:
    return str(net.op("Slice", x, ints(net, start), ints(net, end), ints(net, -1)))


@pytest.mark.parametrize("axis", [-1, 2])
@pytest.mark.parametrize("declared", [(2, 3, 8), ("n", "m", 8)])
def test_an_empty_end_is_dropped(axis: int, declared) -> None:
    net = Net(17)
    x = net.input("x", 2, 3, 8, declared=list(declared))
    rest = cut(net, x, 8, 2**63 - 1)
    net.output(net.op("Concat", net.op("Neg", cut(net, x, 0, 8)), rest, axis=axis), 2, 3, 8)
    assert rewritten(net) == ["Slice", "Neg", "Identity"]


def test_of_three_two_are_joined() -> None:
    net = Net(17)
    x = net.input("x", 2, 3, 8)
    net.output(net.op("Concat", net.op("Neg", x), cut(net, x, 8, 9), x, axis=-1), 2, 3, 16)
    assert rewritten(net) == ["Neg", "Concat"]


def test_an_empty_value_that_is_read_elsewhere_stays() -> None:
    net = Net(17)
    x = net.input("x", 2, 3, 8)
    rest = cut(net, x, 8, 9)
    net.output(net.op("Concat", x, rest, axis=-1), 2, 3, 8)
    net.output(net.op("Relu", rest), 2, 3, 0)
    assert rewritten(net) == ["Slice", "Identity", "Relu"]


def test_nothing_but_empty_values_stays() -> None:
    net = Net(17)
    x = net.input("x", 2, 3, 8)
    rest = cut(net, x, 8, 9)
    net.output(net.op("Concat", rest, rest, axis=-1), 2, 3, 0)
    assert rewritten(net) == ["Slice", "Concat"]


def test_along_another_axis_an_empty_value_is_not_dropped() -> None:
    """Its other sizes are those of the result, which is empty."""
    net = Net(17)
    x = net.input("x", 2, 3, 8)
    rest = cut(net, x, 8, 9)
    net.output(net.op("Concat", rest, rest, axis=1), 2, 6, 0)
    assert rewritten(net) == ["Slice", "Concat"]
