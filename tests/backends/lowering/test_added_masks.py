"""Masks that select scores are added to them instead, where that makes the same scores."""

from __future__ import annotations

import numpy as np
import pytest
from nets import Net
from rewritten_graphs import operators_left

from sift_onnx.backends.lowering.added_masks import with_added_masks

LOWEST = float(np.finfo(np.float32).min)


def attention(number: float, hides: bool = True, tokens: int = 5, is_repeated: bool = False, all_hidden: bool = False):
    """Softmax(Where(mask, number, q k)) v, of which the second sequence ends early."""
    net = Net(17)
    queries, values = (net.input(name, 2, 3, 5, 8) for name in ("q", "v"))
    keys = net.input("k", 2, 3, 8, 5)
    counts = np.arange(tokens) < np.array([[5], [0 if all_hidden else 2]])
    mask = net.input("mask", 2, 1, 1, 5, values=(counts != hides).reshape(2, 1, 1, 5))
    scores = net.op("MatMul", queries, keys)
    if is_repeated:
        mask = net.op("Cast", net.op("Expand", mask, net.op("Shape", scores)), to=9)
    low = net.constant(np.float32(number))
    hidden = net.op("Where", mask, low, scores) if hides else net.op("Where", mask, scores, low)
    net.output(net.op("MatMul", net.op("Softmax", hidden, axis=-1), values), 2, 3, 5, 8)
    return net


@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("number", [-1e30, LOWEST, -np.inf])
def test_a_number_in_which_scores_are_lost_is_added(number: float, hides: bool) -> None:
    assert operators_left(attention(number, hides), with_added_masks) == ["MatMul", "Where", "Add", "Softmax", "MatMul"]


@pytest.mark.parametrize("number", [-1e30, LOWEST])
def test_scores_that_are_all_hidden_stay_equal(number: float) -> None:
    assert "Add" in operators_left(attention(number, all_hidden=True), with_added_masks)


def test_a_mask_is_read_before_it_is_repeated() -> None:
    net = attention(LOWEST, is_repeated=True)
    kinds = operators_left(net, with_added_masks)
    assert kinds.count("Add") == 1
    # The repetition is left without readers.
    assert kinds.index("Expand") < kinds.index("Where")


def test_a_number_that_scores_count_beside_stays() -> None:
    assert "Add" not in operators_left(attention(-10000.0), with_added_masks)
