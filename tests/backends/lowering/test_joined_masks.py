"""Masks that are added to scores one behind the other are added up first, once for all layers."""

from __future__ import annotations

import numpy as np
from nets import Net
from rewritten_graphs import operators_left

from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.joined_masks import with_joined_masks
from sift_onnx.backends.lowering.matching.attention import find_attentions
from sift_onnx.model import Model


def layers(count: int = 2, is_read: bool = False, are_constant: bool = False, is_scaled: bool = False) -> Net:
    """Layers of softmax(q k / 8 + bias + mask) v with heads, whose values are the next one's queries."""
    net = Net(17)
    values, tokens = net.input("x", 2, 3, 5, 8), net.input("k", 2, 3, 8, 5)
    if are_constant:
        bias = net.constant(np.linspace(-1, 1, 75, dtype=np.float32).reshape(1, 3, 5, 5))
        mask = net.constant(np.float32([[[[0, 0, 0, -1e4, -1e4]]]]))
    else:
        bias = net.input("bias", 1, 3, 5, 5)
        lowest = np.finfo(np.float32).min
        mask = net.input("mask", 2, 1, 1, 5, values=np.where(np.arange(5) < [[5], [2]], 0, lowest).reshape(2, 1, 1, 5))
    for layer in range(count):
        scores = net.op("Div", net.op("MatMul", values, tokens), net.constant(np.float32(8)))
        scores = net.op("Add", scores, bias)
        if is_scaled:
            scores = net.op("Mul", scores, net.constant(np.float32(2)))
        if is_read and layer == 0:
            net.output(scores, 2, 3, 5, 5)
        weights = net.op("Softmax", net.op("Add", scores, mask), axis=-1)
        values = net.op("MatMul", weights, values)
    net.output(values, 2, 3, 5, 8)
    return net


LAYER = ["MatMul", "Div", "Add", "Softmax", "MatMul"]


def test_layers_share_the_sum() -> None:
    kinds = operators_left(layers(3), with_joined_masks)
    assert kinds == ["MatMul", "Div", "Add", "Add", "Softmax", "MatMul", *LAYER, *LAYER]


def test_layers_are_recognised_as_attention() -> None:
    graph = GraphView(Model.load(layers(3).model()))
    assert find_attentions(graph) == []
    assert [match.mask for match in find_attentions(with_joined_masks(graph))] == ["add5: masks"] * 3


def test_scores_that_others_read_stay() -> None:
    kinds = operators_left(layers(3, is_read=True), with_joined_masks)
    one = ["MatMul", "Div", "Add", "Add", "Softmax", "MatMul"]
    assert kinds == [*one, *one, *LAYER]


def test_masks_of_other_scores_stay() -> None:
    layer = ["MatMul", "Div", "Add", "Mul", "Add", "Softmax", "MatMul"]
    assert operators_left(layers(2, is_scaled=True), with_joined_masks) == layer * 2


def test_constants_stay() -> None:
    assert operators_left(layers(2, are_constant=True), with_joined_masks).count("Add") == 4
