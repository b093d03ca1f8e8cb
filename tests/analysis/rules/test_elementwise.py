"""Element by element: axes that meet are the same, apart from broadcast ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nets import Net, widen

# Operators that keep a positive tensor finite, and their attributes.
UNARY: dict[str, dict[str, Any]] = {
    name: {}
    for name in """
    Abs Asinh Atan Bernoulli Ceil Celu Cos Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Log Mish Neg
    RandomNormalLike RandomUniformLike Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt
    Tanh ThresholdedRelu
    """.split()
}


@pytest.mark.parametrize("kind", UNARY)
def test_features_pass_an_operator_of_one_input(net: Net, kind: str) -> None:
    h = net.op("Add", net.op("Sigmoid", net.tokens(8)), net.constant(0.1))
    net.tokens_end(net.op(kind, h, name="op"), 8)
    wide = widen(net, "0.9", strict=True)
    assert wide.shape("op") == (1, 5, 25)


@pytest.mark.parametrize("kind", ["IsNaN", "IsInf", "Not"])
def test_features_pass_a_test(net: Net, kind: str) -> None:
    h = net.tokens(8)
    tested = net.op("Greater", h, net.constant(0.0)) if kind == "Not" else h
    net.tokens_end(net.op("Where", net.op(kind, tested, name="op"), net.op("Neg", h), h), 8)
    assert widen(net, strict=True).shape("op") == (1, 5, 16)


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum", "Pow"])
@pytest.mark.parametrize(
    ("other", "wider"),
    [
        ((8,), (16,)),
        ((1, 8), (1, 16)),
        ((1, 5, 8), (1, 5, 16)),
        ((5, 1), (5, 1)),
        ((1,), (1,)),
        ((), ()),
        ((2, 1, 1, 8), (2, 1, 1, 16)),
    ],
)
def test_a_constant_is_broadcast(net: Net, kind: str, other: tuple[int, ...], wider: tuple[int, ...]) -> None:
    # One value throughout, so that a table of it may be drawn anew.
    h = net.op("Sigmoid", net.tokens(8))
    h = net.op(kind, h, net.constant(np.full(other, 0.5), "other"), name="op")
    net.tokens_end(h, 8)
    wide = widen(net)
    assert wide.initializers["other"].shape == wider
    assert wide.shape("op")[-1] == 16


def test_two_branches_that_meet_grow_together(net: Net) -> None:
    h = net.tokens(8)
    net.tokens_end(net.op("Mul", net.dense(h, 8, 12, name="a"), net.dense(h, 8, 12, name="b")), 12)
    wide = widen(net, "0.9")
    assert wide.shape("a") == wide.shape("b") == (1, 5, 38)


def test_a_branch_of_one_feature_is_broadcast_and_stays(net: Net) -> None:
    h = net.tokens(8)
    net.tokens_end(net.op("Mul", h, net.op("Sigmoid", net.dense(h, 8, 1, name="gate"))), 8)
    wide = widen(net)
    assert wide.shape("gate.weight") == (16, 1)
    assert wide.shape("after.weight")[0] == 16


def test_a_graph_input_that_meets_features_fixes_them_and_is_named(net: Net) -> None:
    h = net.op("Add", net.tokens(8), net.input("memory", 1, 5, 8))
    net.tokens_end(net.dense(h, 8, 12, name="free"), 12)
    wide = widen(net)
    assert wide.shape("before") == (1, 5, 8)
    assert wide.shape("free") == (1, 5, 24)
    assert wide.reason("before.weight") == "it is the graph input 'memory'"


@pytest.mark.parametrize("form", ["tensor", "row", "number"])
def test_a_choice_between_tensors(net: Net, form: str) -> None:
    h = net.tokens(8)
    condition = net.op("Greater", h, net.constant(0.0))
    other = {"tensor": (1, 5, 8), "row": (8,), "number": ()}[form]
    net.tokens_end(net.op("Where", condition, h, net.constant(np.full(other, 0.5), "other"), name="chosen"), 8)
    wide = widen(net)
    assert wide.initializers["other"].shape == tuple(16 if n == 8 else n for n in other)


@pytest.mark.parametrize("shape", [(8, 1, 1), (1,), (8, 8, 8)])
def test_a_slope_for_each_channel(net: Net, shape: tuple[int, ...]) -> None:
    slope = net.constant(np.full(shape, 0.25), "slope")
    net.images_end(net.op("PRelu", net.images(8), slope, name="op"), 8)
    wide = widen(net)
    assert wide.initializers["slope"].shape == ((16, *shape[1:]) if len(shape) > 1 else shape)


def test_bounds_of_a_clip_are_numbers(net: Net) -> None:
    net.tokens_end(net.op("Clip", net.tokens(8), net.constant(-1.0), net.constant(1.0), name="op"), 8)
    assert widen(net).shape("op") == (1, 5, 16)


def test_the_mask_of_a_dropout_has_the_shape_of_its_data(net: Net) -> None:
    h, mask = net.op("Dropout", net.tokens(8), name="dropped", outputs=2)
    net.tokens_end(net.op("Where", mask, h, net.constant(0.0)), 8)
    assert widen(net).shape(mask) == (1, 5, 16)


def test_integer_features_keep_their_operators_of_bits(net: Net) -> None:
    h = net.op("Cast", net.op("Mul", net.tokens(8), net.constant(100.0)), to=6)
    bits = net.op("BitwiseXor", net.op("BitwiseNot", h), net.op("BitwiseAnd", h, net.constant(np.int32(7))), name="op")
    net.tokens_end(net.op("Cast", bits, to=1), 8)
    assert widen(net, strict=True).shape("op") == (1, 5, 16)


def test_sequences_of_given_lengths_are_reversed(net: Net) -> None:
    h = net.op("Transpose", net.tokens(8), perm=[1, 0, 2])
    h = net.op("ReverseSequence", h, net.constant([3]), name="op")
    net.tokens_end(h, 8)
    assert widen(net, strict=True).shape("op") == (5, 1, 16)
