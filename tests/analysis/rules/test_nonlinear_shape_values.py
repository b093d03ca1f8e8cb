"""Sizes that are computed by something that is no linear expression: what stays, and what grows all the same."""

from __future__ import annotations

import numpy as np
import pytest
from nets import Net, widen
from onnx import TensorProto, numpy_helper
from shape_subgraphs import listed, number, size


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_the_larger_or_smaller_of_two_sizes_pins_them(net: Net, op: str) -> None:
    h = net.dense(net.op("Relu", net.tokens(6)), 6, 7, name="q")
    limited = net.op(op, size(net, h, 2), number(net, 7))
    net.tokens_end(net.op("Reshape", h, listed(net, number(net, 1), number(net, 5), limited)), 7)
    wide = widen(net)
    assert wide.shape("q.weight") == (12, 7)
    assert "not linear" in wide.reason("q.weight")


@pytest.mark.parametrize("first", ["a", "b"])
def test_of_two_sizes_that_are_multiplied_the_first_grows(net: Net, first: str) -> None:
    a, b = net.dense(net.op("Relu", net.tokens(6)), 6, 4, name="a"), net.dense("relu2", 6, 7, name="b")
    outer = net.op("Mul", net.op("Unsqueeze", a, net.constant([3])), net.op("Unsqueeze", b, net.constant([2])))
    sizes = [size(net, a, 2), size(net, b, 2)]
    product = net.op("Mul", *(sizes if first == "a" else sizes[::-1]))
    flat = net.op("Reshape", outer, listed(net, number(net, 1), number(net, 5), product), name="flat")
    net.tokens_end(flat, 28)
    wide = widen(net)
    assert wide.shape("a.weight") == (12, 8 if first == "a" else 4)
    assert wide.shape("b.weight") == (12, 14 if first == "b" else 7)
    assert wide.shape("flat") == (1, 5, 56)


def test_a_size_that_divides_another_stays(net: Net) -> None:
    """``28 // C`` tokens of width C."""
    h = net.dense(net.op("Relu", net.tokens(6, length=4)), 6, 7, name="q")
    rows = net.op("Div", number(net, 28), size(net, h, 2))
    net.tokens_end(net.op("Reshape", h, listed(net, number(net, 1), rows, number(net, -1)), name="same"), 7)
    wide = widen(net)
    assert wide.shape("q.weight") == (12, 7)
    assert "divides another size" in wide.reason("q.weight")


def test_a_size_that_counts_positions_stays(net: Net) -> None:
    """``arange(C)[-1] - 1`` tokens."""
    h = net.dense(net.op("Relu", net.tokens(6)), 6, 7, name="q")
    positions = net.op("Range", number(net, 0), size(net, h, 2), number(net, 1), name="positions")
    tokens = net.op("Sub", net.op("Gather", positions, number(net, -1)), number(net, 1))
    net.tokens_end(net.op("Reshape", h, listed(net, number(net, 1), tokens, number(net, -1)), name="same"), 7)
    wide = widen(net)
    assert wide.after["positions"].tolist() == list(range(7))
    assert "range of numbers" in wide.reason("q.weight")


def test_positions_up_to_a_fixed_length_are_looked_up(net: Net) -> None:
    h = net.dense(net.op("Relu", net.tokens(6)), 6, 7, name="q")
    positions = net.op("Range", number(net, 0), size(net, h, 1), number(net, 1))
    h = net.op("Add", h, net.op("Gather", net.weight(9, 7, name="table"), positions, name="looked"))
    net.tokens_end(h, 7)
    wide = widen(net)
    assert (wide.shape("table"), wide.shape("looked")) == ((9, 14), (5, 14))


def test_a_size_that_is_an_index_stays(net: Net) -> None:
    """The 7th of eight numbers is how many tokens there are."""
    h = net.dense(net.op("Relu", net.tokens(6)), 6, 7, name="q")
    tokens = net.op("Gather", net.constant([2, 2, 2, 2, 2, 2, 2, 5]), size(net, h, 2))
    net.tokens_end(net.op("Reshape", h, listed(net, number(net, 1), tokens, number(net, -1)), name="same"), 7)
    assert widen(net).shape("q.weight") == (12, 7)


def test_a_size_that_bounds_a_slice_stays(net: Net) -> None:
    h = net.dense(net.op("Relu", net.tokens(6)), 6, 7, name="q")
    end = net.op("Shape", h, start=2)
    tokens = net.op("Slice", net.constant([2, 2, 2, 2, 2, 2, 5, 2, 2, 2, 2, 2, 2, 2, 2]), net.constant([6]), end)
    target = net.op("Concat", net.constant([1]), tokens, net.constant([-1]), axis=0, name="target")
    net.tokens_end(net.op("Reshape", h, target, name="same"), 7)
    assert widen(net).shape("q.weight") == (12, 7)


@pytest.mark.parametrize("op", ["Expand", "ConstantOfShape"])
def test_a_size_that_says_how_often_a_number_is_repeated_stays(net: Net, op: str) -> None:
    h = net.dense(net.op("Relu", net.tokens(6)), 6, 7, name="q")
    width = net.op("Shape", h, start=2)
    if op == "Expand":
        ones = net.op("Expand", net.constant([1]), width)
    else:
        ones = net.op("ConstantOfShape", width, value=numpy_helper.from_array(np.asarray([1], dtype=np.int64)))
    tokens = net.op("ReduceProd", net.op("Add", ones, net.constant([0, 0, 4, 0, 0, 0, 0])), keepdims=1)
    target = net.op("Concat", net.constant([1]), tokens, net.constant([-1]), axis=0)
    net.tokens_end(net.op("Reshape", h, target), 7)
    assert widen(net).shape("q.weight") == (12, 7)


def test_a_size_that_becomes_a_float_only_scales(net: Net) -> None:
    """``h / sqrt(C)``: it follows the width, and pins nothing."""
    h = net.dense(net.op("Relu", net.tokens(6)), 6, 7, name="q")
    root = net.op("Sqrt", net.op("Cast", size(net, h, 2), to=TensorProto.FLOAT), name="root")
    net.tokens_end(net.op("Div", h, root), 7)
    wide = widen(net)
    assert wide.shape("q.weight") == (12, 14)
    assert wide.after["root"] == pytest.approx(14**0.5)


def test_a_width_whose_half_is_no_whole_number_stays_behind_floating_point(net: Net) -> None:
    """``int(C / 2.0 * 2.0)`` is C, which whole numbers would not find for 7."""
    h = net.dense(net.op("Relu", net.tokens(6)), 6, 7, name="q")
    two = net.op("Cast", number(net, 2), to=TensorProto.FLOAT)
    width = net.op("Cast", size(net, h, 2), to=TensorProto.FLOAT)
    again = net.op("Cast", net.op("Mul", net.op("Div", width, two), two), to=TensorProto.INT64, name="again")
    h = net.op("Reshape", h, listed(net, number(net, 1), number(net, 5), again))
    net.tokens_end(net.op("Reshape", h, net.constant([1, 5, 7])), 7)
    wide = widen(net)
    assert wide.after["again"] == 7
    assert "a computation that is not linear uses it" in wide.reason("q.weight")
