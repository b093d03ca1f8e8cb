"""What has no elements is not joined, and everything else stays what it is."""

from __future__ import annotations

import numpy as np
import pytest
from nets import Net
from rewritten_graphs import operators_left

from sift_onnx.backends.lowering.empty_operands import without_empty_operands


def rewritten(net: Net) -> list[str]:
    """The operators that are left."""
    return operators_left(net, without_empty_operands)


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


def test_one_operand_is_not_joined() -> None:
    net = Net(17)
    x = net.input("x", 2, 3, 8)
    net.output(net.op("Neg", net.op("Concat", x, axis=1)), 2, 3, 8)
    assert rewritten(net) == ["Identity", "Neg"]
