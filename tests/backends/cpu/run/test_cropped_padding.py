"""Convolutions whose padded end is cut off, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from sparse_nets import SparseNet, assert_same_as_onnxruntime, assert_same_at_batches

from sift_onnx.backends.lowering.cropped_padding import without_cropped_padding
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.model import Model

pytestmark = pytest.mark.usefixtures("every_region_pays")


def causal(
    net: SparseNet,
    ends: int | None,
    pad: int = 4,
    dilation: int = 2,
    length: int | str = "t",
    start: int = 0,
    **more: int,
) -> str:
    """A series through a convolution of three taps, of which positions up to ``ends`` stay; None is its own length."""
    x = net.input("x", 2, 4, 9, declared=["n", 4, length])
    y = net.op(
        "Conv", net.op("Relu", x), net.weight(6, 4, 3), name="conv", kernel_shape=[3], pads=[pad, pad],
        dilations=[dilation], **{name: [value] for name, value in more.items()},
    )  # fmt: skip
    own = net.op("Slice", net.op("Shape", x), *(net.constant([i], dtype=np.int64) for i in (2, 3)))
    end = own if ends is None else net.constant([ends], dtype=np.int64)
    return str(net.op("Slice", y, net.constant([start], dtype=np.int64), end, net.constant([2], dtype=np.int64)))


def operators(model: onnx.ModelProto) -> list[str]:
    graph = without_cropped_padding(GraphView(Model.load(model)))
    return [node.op_type for node in graph.nodes if node.op_type == "Slice" and node.input[0] == "conv"]


@pytest.mark.parametrize("length", [9, "t"])
@pytest.mark.parametrize("ends", [-4, -3, None])
def test_only_what_stays_is_computed(ends: int | None, length: int | str) -> None:
    net = SparseNet()
    net.output(net.op("Conv", net.op("Relu", causal(net, ends, length=length)), net.weight(3, 6, 1), kernel_shape=[1]))
    assert operators(net.model()) == []
    program = assert_same_at_batches(net.model(), [1, 3, 16])
    assert len(program.parts) == 1


@pytest.mark.parametrize(
    ("ends", "more"),
    [(-5, {}), (-4, {"pad": 2}), (-4, {"strides": 2}), (-1, {"start": 1}), (-3, {"dilation": 3, "pad": 4}), (99, {})],
)
def test_other_slices_stay(ends: int, more: dict[str, int]) -> None:
    net = SparseNet()
    net.output(net.op("Relu", causal(net, ends, **more)))
    assert operators(net.model()) == ["Slice"]
    assert_same_as_onnxruntime(net.model(), net.feeds)


def test_a_result_that_others_read_stays() -> None:
    net = SparseNet()
    net.output(causal(net, -4))
    net.output(net.op("Relu", "conv"))
    assert operators(net.model()) == ["Slice"]


def test_padding_in_front_keeps_the_length() -> None:
    """Of a causal depthwise convolution, whose result is added to its operand."""
    net = SparseNet()
    x = net.dense(net.input("x", 2, 9, 4, declared=["n", "t", 4]), 4, 6)
    padded = net.op("Pad", net.op("Transpose", x, perm=[0, 2, 1]), net.constant([0, 0, 4, 0, 0, 0], dtype=np.int64))
    y = net.op("Conv", padded, net.weight(6, 1, 3), kernel_shape=[3], dilations=[2], group=6)
    net.output(net.dense(net.op("Add", x, net.op("Transpose", y, perm=[0, 2, 1])), 6, 3))
    assert len(assert_same_at_batches(net.model(), [1, 3, 16]).parts) == 1
