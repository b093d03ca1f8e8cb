"""Images with their channels last in the order of convolutions: fewer nodes that turn them, and the same results."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from channels_last_nets import TO_FIRST, TO_LAST, ChannelsLastNet
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from sift_onnx.backends.lowering.channel_order import channels_first
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.model import Model

CHANNELS = 4


def assert_same(net: ChannelsLastNet, **feeds: Any) -> list[onnx.NodeProto]:
    """The nodes after the rewriting, which compute what those before it did, and turn no more elements."""
    model = net.model()
    graph = GraphView(Model.load(model))
    view = channels_first(graph)
    onnx.checker.check_model(view.proto)
    feeds = net.feeds | feeds
    wanted, found = (ReferenceEvaluator(own).run(None, feeds) for own in (model, view.proto))
    for array, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-5)
    assert turned_elements(view) <= turned_elements(graph)
    assert [node for node, _ in view.origin] == graph.nodes
    return view.nodes


def transposes(nodes: list[onnx.NodeProto]) -> int:
    return sum(node.op_type == "Transpose" for node in nodes)


def turned_elements(graph: GraphView) -> int:
    """Of one image, where their number is open."""
    turned = [graph.dims(node.output[0]) or () for node in graph.nodes if node.op_type == "Transpose"]
    return sum(math.prod(size for size in dims if isinstance(size, int)) for dims in turned)


def images(net: ChannelsLastNet, size: int = 4) -> str:
    """What is behind a convolution: a node that turns it, and nothing else, is at its border."""
    return net.layer(net.image(CHANNELS, size), CHANNELS, CHANNELS)


def ends(net: ChannelsLastNet, x: str, channels: int = CHANNELS) -> None:
    net.output(net.op("Relu", net.layer(x, channels, 2)))


def turned_twice(net: ChannelsLastNet, x: str) -> str:
    return str(net.op("Relu", x))


def with_a_vector(net: ChannelsLastNet, x: str) -> str:
    return str(net.op("Mul", net.op("Add", net.constant(np.arange(CHANNELS) / 2), x), net.constant(2.0)))


def with_a_table(net: ChannelsLastNet, x: str) -> str:
    return str(net.op("Sub", x, net.constant(np.arange(4 * CHANNELS).reshape(4, 1, CHANNELS) / 4)))


def parametric(net: ChannelsLastNet, x: str) -> str:
    return str(net.op("PRelu", x, net.constant(np.linspace(0.1, 0.5, CHANNELS).reshape(1, 1, CHANNELS))))


def joined(net: ChannelsLastNet, x: str) -> str:
    first, second = net.op("Split", x, outputs=2, axis=-1, num_outputs=2)
    joined = net.op("Concat", second, first, axis=3)
    return str(net.op("Concat", joined, net.constant(np.ones((1, 1, 4, CHANNELS))), axis=1))


def cut(net: ChannelsLastNet, x: str) -> str:
    starts, ends, axes, steps = (net.constant(values) for values in ([1, -3], [9, -1], [-3, 2], [2, 1]))
    return str(net.op("Slice", x, starts, ends, axes, steps))


def padded(net: ChannelsLastNet, x: str) -> str:
    pads = net.op("Concat", net.constant([0, 1, 2, 0]), net.constant([0, 3, 4, 0]), axis=0)
    x = net.op("Pad", net.op("Pad", x, pads), net.constant([0, 1, 0, 0, 0, 0, 2, 0]))
    return str(net.op("Pad", x, net.constant([1, 2]), "", net.constant([2]), mode="edge"))


def spread(net: ChannelsLastNet, x: str) -> str:
    highest = net.op("ReduceMax", x, net.constant([-2, 1]))
    over_channels = net.op("ReduceMean", x, net.constant([3]))
    return str(net.op("Add", net.op("Mul", x, net.op("Sigmoid", highest)), over_channels))


def resized(net: ChannelsLastNet, x: str) -> str:
    x = net.op("Resize", x, "", net.constant([1.0, 2.0, 3.0, 1.0]), mode="nearest")
    sizes = net.op("Mul", net.op("Shape", x), net.constant([1, 2, 1, 1]))
    return str(net.op("Resize", x, "", "", sizes, mode="linear"))


def expanded(net: ChannelsLastNet, x: str) -> str:
    sizes = net.op("Shape", x)
    mean = net.op("ReduceMean", x, net.constant([1, 2]))
    return str(net.op("Tile", net.op("Add", net.op("Expand", mean, sizes), x), net.constant([1, 1, 2, 1])))


def quantized(net: ChannelsLastNet, x: str) -> str:
    scale, zero = net.constant(np.linspace(0.1, 0.2, CHANNELS)), net.constant(np.arange(CHANNELS), dtype=np.uint8)
    x = net.op("DequantizeLinear", net.op("QuantizeLinear", x, scale, zero, axis=-1), scale, zero, axis=3)
    return str(net.op("DequantizeLinear", net.op("QuantizeLinear", x, net.constant(0.1)), net.constant(0.1)))


def chosen(net: ChannelsLastNet, x: str) -> str:
    return str(net.op("Where", net.op("Greater", x, net.constant(0.0)), x, net.constant(np.arange(CHANNELS) / 2)))


@pytest.mark.parametrize(
    "between",
    [
        turned_twice, with_a_vector, with_a_table, parametric, joined, cut, padded, spread, resized, expanded,
        quantized, chosen,
    ],
)  # fmt: skip
def test_only_the_ends_are_turned(between: Any) -> None:
    net = ChannelsLastNet(opset=19)
    ends(net, between(net, images(net)))
    assert transposes(assert_same(net)) == 2


def test_a_flattened_end_is_turned_back() -> None:
    net = ChannelsLastNet(opset=18)
    x = net.op("Reshape", net.op("Relu", images(net)), net.constant([-1, 16 * CHANNELS]))
    net.output(net.dense(x, 16 * CHANNELS, 3))
    nodes = assert_same(net)
    assert [node.op_type for node in nodes] == ["Transpose", "Conv", "Relu", "Transpose", "Reshape", "MatMul"]


def test_means_without_their_axes_need_no_turn() -> None:
    net = ChannelsLastNet(opset=18)
    net.output(net.op("ReduceMean", net.op("Relu", images(net)), net.constant([1, 2]), keepdims=0))
    assert transposes(assert_same(net)) == 1


def test_a_reshape_to_one_pixel_is_a_turn() -> None:
    net = ChannelsLastNet(opset=18)
    x = net.op("ReduceMean", images(net), net.constant([1, 2]))
    x = net.op("Reshape", x, net.constant([0, CHANNELS, 1, 1]))
    x = net.op("Reshape", net.conv(x, CHANNELS, CHANNELS), net.constant([0, 1, 1, CHANNELS]))
    ends(net, net.op("Sigmoid", x))
    nodes = assert_same(net)
    assert transposes(nodes) == 2
    assert not any(node.op_type == "Reshape" for node in nodes)


def test_values_that_others_read_as_they_were_are_turned_once() -> None:
    net = ChannelsLastNet(opset=18)
    x = net.op("Relu", images(net))
    net.output(x)
    net.output(net.dense(x, CHANNELS, 3))
    for _ in range(2):
        ends(net, net.op("Add", x, net.layer(x, CHANNELS, CHANNELS)))
    assert_same(net)


def test_an_output_that_a_convolution_would_read_keeps_its_name() -> None:
    net = ChannelsLastNet(opset=18)
    first = net.op("Transpose", net.op("Relu", images(net)), perm=TO_FIRST, name="first")
    net.output(first)
    net.output(net.conv(first, CHANNELS, 2))
    nodes = assert_same(net)
    assert transposes(nodes) == 1
    assert any(node.op_type == "Relu" and node.output[0] == "first" for node in nodes)


def test_two_outputs_are_the_same_value() -> None:
    net = ChannelsLastNet(opset=18)
    x = net.op("Relu", images(net))
    for _ in range(2):
        net.output(net.op("Transpose", x, perm=TO_FIRST))
    assert transposes(assert_same(net)) == 1


def test_layer_normalization_in_nodes_keeps_its_axis() -> None:
    """Of channels that are last the kernels have it."""
    net = ChannelsLastNet(opset=18)
    x = images(net)
    difference = net.op("Sub", x, net.op("ReduceMean", x, net.constant([-1])))
    variance = net.op("ReduceMean", net.op("Mul", difference, difference), net.constant([-1]))
    root = net.op("Sqrt", net.op("Add", variance, net.constant(1e-5)))
    x = net.op("Mul", net.op("Div", difference, root), net.constant(np.linspace(1, 2, CHANNELS)))
    for _ in range(2):
        ends(net, x)
    nodes = assert_same(net)
    (perm,) = [list(node.attribute[0].ints) for node in nodes if node.op_type == "Transpose" and node.input[0] == x]
    assert perm == TO_FIRST


def test_attention_is_left_alone() -> None:
    net = ChannelsLastNet(opset=18)
    x = net.dense(net.input("x", 2, 5, 6), 6, 6)
    keys = net.op("Add", net.dense(x, 6, 6), net.constant(np.ones(6)))
    for _ in range(2):
        net.output(net.op("MatMul", x, net.op("Transpose", keys, perm=[0, 2, 1])))
    model = net.model()
    graph = GraphView(Model.load(model))
    assert channels_first(graph) is graph


def test_signals_of_one_axis() -> None:
    net = ChannelsLastNet(opset=18)
    x = net.input("x", 2, 9, 4)
    for _ in range(2):
        y = net.op("Conv", net.op("Transpose", x, perm=[0, 2, 1]), net.weight(4, 4, 3), pads=[1, 1])
        y = net.op("Add", net.op("Transpose", y, perm=[0, 2, 1]), net.constant(np.linspace(0, 1, 4)))
        x = net.op("Relu", net.op("Add", x, y))
    net.output(x)
    assert transposes(assert_same(net)) == 2


def test_a_loop_reads_the_value_as_it_was() -> None:
    net = ChannelsLastNet(opset=18)
    x = net.op("Relu", images(net))
    branch = onnx.helper.make_graph(
        [onnx.helper.make_node("Shape", [x], ["sizes"])],
        "branch",
        [],
        [onnx.helper.make_tensor_value_info("sizes", onnx.TensorProto.INT64, [4])],
    )
    net.output(net.op("If", net.constant(True), then_branch=branch, else_branch=branch))
    ends(net, x)
    ends(net, net.op("Neg", x))
    assert_same(net)


Value = tuple[str, tuple[int, ...]]
_MOST_ELEMENTS = 300


class Builder:
    """Operators on values of four axes, drawn one by one; each gives a value, or None where it does not fit."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.net = ChannelsLastNet(opset=18, seed=draw(st.integers(0, 99)))
        self.values: list[Value] = [(self.net.input("x", 2, 4, 2, 3), (2, 4, 2, 3))]

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def turn(self, x: str, shape: tuple[int, ...]) -> Value:
        perm = self.pick((TO_FIRST, TO_LAST))
        return self.net.op("Transpose", x, perm=perm), tuple(shape[axis] for axis in perm)

    def unary(self, x: str, shape: tuple[int, ...]) -> Value:
        return self.net.op(self.pick(("Relu", "Neg", "Sigmoid", "Identity")), x), shape

    def layer(self, x: str, shape: tuple[int, ...]) -> Value:
        return self.net.layer(x, shape[3], 3, self.pick((1, 3))), (*shape[:3], 3)

    def with_constant(self, x: str, shape: tuple[int, ...]) -> Value:
        sizes = [self.pick((1, size)) for size in shape[4 - self.draw(st.integers(0, 4)) :]]
        operands = [x, self.net.constant(np.cos(np.arange(math.prod(sizes))).reshape(sizes))]
        return self.net.op(self.pick(("Add", "Mul", "Sub")), *self.draw(st.permutations(operands))), shape

    def sum(self, x: str, shape: tuple[int, ...]) -> Value:
        return self.net.op(
            self.pick(("Add", "Max")), x, self.pick([name for name, own in self.values if own == shape])
        ), shape

    def join(self, x: str, shape: tuple[int, ...]) -> Value:
        axis = self.draw(st.integers(-4, 3))
        others = self.without(shape, axis)
        name, sizes = self.pick([value for value in self.values if self.without(value[1], axis) == others])
        return self.net.op("Concat", x, name, axis=axis), self.with_size(shape, axis, shape[axis] + sizes[axis])

    def split(self, x: str, shape: tuple[int, ...]) -> Value | None:
        axis = self.draw(st.integers(-4, 3))
        if shape[axis] < 2:
            return None
        parts = self.net.constant([1, shape[axis] - 1])
        return self.net.op("Split", x, parts, outputs=2, axis=axis)[0], self.with_size(shape, axis, 1)

    def reduce(self, x: str, shape: tuple[int, ...]) -> Value | None:
        axes = self.net.constant(self.draw(st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True)))
        if self.draw(st.booleans()):
            self.net.output(self.net.op("ReduceSum", x, axes, keepdims=0))
            return None
        return self.net.op("Mul", x, self.net.op("ReduceMean", x, axes)), shape

    def pad(self, x: str, shape: tuple[int, ...]) -> Value:
        pads = self.draw(st.lists(st.integers(0, 1), min_size=8, max_size=8))
        sizes = tuple(size + pads[axis] + pads[4 + axis] for axis, size in enumerate(shape))
        return self.net.op("Pad", x, self.net.constant(pads)), sizes

    def cut(self, x: str, shape: tuple[int, ...]) -> Value:
        axis = self.draw(st.integers(-4, 3))
        bounds = [self.net.constant([bound]) for bound in (0, 1, axis)]
        return self.net.op("Slice", x, *bounds), self.with_size(shape, axis, 1)

    def without(self, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
        return self.with_size(shape, axis, 0)

    def with_size(self, shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
        return (*shape[: axis % 4], size, *shape[axis % 4 + 1 :])

    OPERATORS = (turn, turn, unary, layer, layer, with_constant, sum, join, split, reduce, pad, cut)


@st.composite
def networks(draw: st.DrawFn) -> ChannelsLastNet:
    """Images that are turned here and there, or not at all, between operators that run in any order."""
    builder = Builder(draw)
    for _ in range(draw(st.integers(3, 9))):
        made = builder.pick(Builder.OPERATORS)(builder, *builder.pick(builder.values))
        if made is not None and math.prod(made[1]) < _MOST_ELEMENTS:
            builder.values.append(made)
    names = [name for name, _ in builder.values[1:]] or [builder.net.op("Relu", "x")]
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)):
        builder.net.output(name)
    return builder.net


@settings(max_examples=25, deadline=None)
@given(networks())
def test_any_network_computes_the_same(net: ChannelsLastNet) -> None:
    assert_same(net)
