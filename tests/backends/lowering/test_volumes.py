"""Volumes as images: the same results, with windows of two axes alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from random_volumes import networks
from volume_nets import VolumeNet

from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.volumes import volumes_as_images
from sift_onnx.model import Model

CHANNELS = 4
SIZES = (4, 3, 5)
_WINDOWS = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "Resize")


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def assert_same(net: VolumeNet) -> GraphView:
    """The graph after the rewriting, which computes what the model does."""
    model = net.model()
    graph = GraphView(Model.load(model))
    view = volumes_as_images(graph)
    onnx.checker.check_model(view.proto)
    for array, other in zip(run(model, net.feeds), run(view.proto, net.feeds), strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-5)
    assert [node for node, _ in view.origin] == graph.nodes
    return view


def assert_of_images(net: VolumeNet) -> list[str]:
    """Operators after the rewriting, of which those with windows have images."""
    view = assert_same(net)
    for node in view.nodes:
        if node.op_type in _WINDOWS:
            assert len(view.dims(node.input[0]) or ()) == 4, node.name
    return [node.op_type for node in view.nodes]


def images(net: VolumeNet, channels: int = CHANNELS, batch: int = 2) -> str:
    """A volume whose frames are images."""
    return net.layer(net.volume(2, *SIZES, batch=batch), 2, channels, (1, 3, 3))


def ends(net: VolumeNet, x: str, channels: int = CHANNELS) -> None:
    net.output(net.layer(x, channels, 2, (3, 1, 1)))


@st.composite
def layers(draw: st.DrawFn) -> VolumeNet:
    net = VolumeNet(opset=18, seed=draw(st.integers(0, 99)))
    numbers = st.integers(1, 3)
    group = draw(st.sampled_from([1, 1, 2, 4]))
    kernel, strides, dilations = ([draw(numbers) for _ in range(3)] for _ in range(3))
    pads = [draw(st.integers(0, 2)) for _ in range(6)]
    # Large enough for one window.
    sizes = [max(draw(st.integers(1, 5)), 1 + d * (k - 1)) for k, d in zip(kernel, dilations, strict=True)]
    weight = net.weight(draw(st.sampled_from([4, 8])), 4 // group, *kernel)
    x = net.volume(4, *sizes, batch=draw(st.integers(1, 2)))
    given = {"strides": strides, "dilations": dilations, "pads": pads, "group": group}
    net.output(net.op("Relu", net.op("Conv", x, weight, **given)))
    return net


@settings(max_examples=12, deadline=None)
@given(layers())
def test_a_convolution_is_one_of_images(net: VolumeNet) -> None:
    assert_of_images(net)


def test_a_convolution_is_that_of_the_reference() -> None:
    net = VolumeNet(opset=18)
    net.output(net.layer(net.volume(2, 3, 3, 2), 2, 2, strides=[2, 1, 1], dilations=[1, 2, 1]))
    view = assert_same(net)
    (wanted,) = ReferenceEvaluator(net.model()).run(None, net.feeds)
    np.testing.assert_allclose(run(view.proto, net.feeds)[0], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "moves"),
    [
        # Of one pixel: the volume, seen otherwise.
        ((3, 1, 1), ["Reshape", "Conv", "Reshape"]),
        ((1, 1, 1), ["Reshape", "Conv", "Reshape"]),
        # Of one frame: frames come first, and go back.
        ((1, 3, 3), ["Transpose", "Reshape", "Conv", "Reshape", "Transpose"]),
    ],
)
def test_factors_of_a_kernel_only_turn_axes(kernel: tuple[int, int, int], moves: list[str]) -> None:
    net = VolumeNet(opset=18)
    net.output(net.layer(net.volume(2, *SIZES), 2, 3, kernel))
    assert assert_of_images(net) == moves


def test_windows_that_do_not_overlap_copy_no_frame() -> None:
    """As videos are cut into patches."""
    net = VolumeNet(opset=18)
    net.output(net.layer(net.volume(3, 4, 4, 4), 3, 6, (2, 2, 2), strides=[2, 2, 2], pads=[0] * 6))
    assert assert_of_images(net) == ["Transpose", "Reshape", "Reshape", "Conv", "Reshape", "Transpose"]


def test_padding_that_a_mode_asks_for() -> None:
    net = VolumeNet(opset=18)
    for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        x = net.volume(2, *SIZES) if mode == "SAME_UPPER" else "x"
        weight = net.weight(4, 2, 2, 3, 3)
        net.output(net.op("Conv", x, weight, auto_pad=mode, strides=[2, 1, 2]))
    assert_of_images(net)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_a_pool_is_one_of_images(data: st.DataObject) -> None:
    net = VolumeNet(opset=18)
    kernel, strides = ([data.draw(st.integers(1, 3)) for _ in range(3)] for _ in range(2))
    pads = [data.draw(st.integers(0, size // 2)) for size in kernel] * 2
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    kind = data.draw(st.sampled_from(["MaxPool", "AveragePool"]))
    if kind == "MaxPool":
        attributes["ceil_mode"] = data.draw(st.integers(0, 1))
    else:
        attributes["count_include_pad"] = data.draw(st.integers(0, 1))
    net.output(net.op(kind, images(net), **attributes))
    if kernel == strides == [1, 1, 1] or attributes.get("ceil_mode"):
        assert_same(net)
    else:
        assert_of_images(net)


def test_a_pool_may_take_what_is_left() -> None:
    net = VolumeNet(opset=18)
    net.output(net.op("MaxPool", images(net), kernel_shape=[3, 2, 2], strides=[3, 2, 2], ceil_mode=1))
    assert_of_images(net)


@pytest.mark.parametrize("kernel", [(2, 2, 2), (1, 2, 3), (3, 1, 1)])
def test_a_transposed_convolution_that_tiles(kernel: tuple[int, int, int]) -> None:
    net = VolumeNet(opset=18)
    weight = net.weight(CHANNELS, 3, *kernel)
    x = net.op("ConvTranspose", images(net), weight, net.constant([0.1, 0.2, 0.3]), strides=list(kernel))
    ends(net, x, 3)
    assert_of_images(net)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("factors", [(2, 2, 2), (1, 2, 3), (3, 1, 1)])
def test_resizing_by_whole_factors(mode: str, factors: tuple[int, int, int]) -> None:
    net = VolumeNet(opset=18)
    scales = net.constant([1.0, 1.0, *map(float, factors)])
    ends(net, net.op("Resize", images(net), "", scales, mode=mode))
    assert_of_images(net)


def test_resizing_to_sizes() -> None:
    net = VolumeNet(opset=18)
    x = images(net)
    sizes = net.constant([2 * size for size in SIZES])
    ends(net, net.op("Resize", x, "", "", sizes, axes=[2, 3, 4], coordinate_transformation_mode="align_corners",
                     mode="linear"))  # fmt: skip
    assert_of_images(net)


def per_channel(net: VolumeNet, x: str) -> str:
    slopes = net.constant(np.linspace(0.1, 0.5, CHANNELS).reshape(CHANNELS, 1, 1, 1))
    x = net.op("PRelu", net.norm(x, CHANNELS), slopes)
    return str(net.op("Clip", net.op("Mul", net.constant(2.0), x), net.constant(-1.0), net.constant(1.0)))


def per_frame(net: VolumeNet, x: str) -> str:
    of_frames = net.constant(np.arange(4.0).reshape(4, 1, 1))
    return str(net.op("Add", net.layer(x, CHANNELS, CHANNELS, (3, 1, 1)), of_frames))


def gated(net: VolumeNet, x: str) -> str:
    return str(net.op("Mul", net.op("Sigmoid", net.op("GlobalAveragePool", x)), x))


def gated_by_mean(net: VolumeNet, x: str) -> str:
    return str(net.op("Sub", x, net.op("ReduceMean", x, net.constant([-1, -2, -3]))))


def summed(net: VolumeNet, x: str) -> str:
    return str(net.op("Sum", x, net.layer(x, CHANNELS, CHANNELS), net.layer(x, CHANNELS, CHANNELS, (3, 1, 1))))


def joined(net: VolumeNet, x: str) -> str:
    first, second = net.op("Split", net.op("Concat", x, x, axis=1), outputs=2, axis=-4, num_outputs=2)
    first, second = net.op("Split", net.op("Concat", first, second, axis=2), outputs=2, axis=2, num_outputs=2)
    return str(net.op("Add", first, second))


def normalized(net: VolumeNet, x: str) -> str:
    scale, shift = (net.constant(np.linspace(0.5, 2, CHANNELS)) for _ in range(2))
    x = net.op("GroupNormalization", net.instance_norm(x, CHANNELS), scale, shift, num_groups=2)
    return net.group_norm(net.op("Softmax", x, axis=1), CHANNELS, 2)


def cut(net: VolumeNet, x: str) -> str:
    """Pixels and frames, frames alone, channels and pixels."""
    starts, ends, axes, steps = (net.constant(values) for values in ([1, 0, 0], [9, -1, 3], [-1, 3, 2], [2, 1, 2]))
    first = net.op("Slice", x, starts, ends, axes, steps)
    second = net.op("Slice", x, *(net.constant([bound]) for bound in (-2, 1 << 40, 2)))
    third = net.op("Slice", x, *(net.constant(bounds) for bounds in ([0, 1], [4, 2], [1, 3])))
    for part in (first, second):
        net.output(net.op("Relu", part))
    return str(net.op("Mul", third, third))


def padded(net: VolumeNet, x: str) -> str:
    """As causal convolutions pad: frames before, pixels around."""
    x = net.op("Pad", x, net.constant([0, 0, 2, 1, 1, 0, 0, 0, 1, 0]))
    x = net.op("Pad", x, net.constant([1, 2]), net.constant(0.5), net.constant([2]))
    return str(net.op("Pad", x, net.constant([1, 1, 0, 1]), "", net.constant([-1, -2]), mode="edge"))


def with_the_largest(net: VolumeNet, x: str) -> str:
    return str(net.op("Add", x, net.op("GlobalMaxPool", x)))


@pytest.mark.parametrize(
    "between",
    [per_channel, per_frame, gated, gated_by_mean, summed, joined, cut, padded, normalized, with_the_largest],
)
def test_what_lies_between_layers_is_of_images(between: Any) -> None:
    net = VolumeNet(opset=21)
    ends(net, between(net, images(net)))
    view = assert_same(net)
    of_volumes = [
        node.op_type
        for index, node in enumerate(view.nodes)
        if index not in view.moves and any(len(view.dims(name) or ()) == 5 for name in node.input if name)
    ]
    # Sizes are read of the volume: a run knows them, and does not make it.
    assert set(of_volumes) <= {"Shape"}


def test_a_chain_of_frames_turns_its_ends_alone() -> None:
    net = VolumeNet(opset=18)
    x = images(net)
    for _ in range(2):
        x = net.op("Relu", net.op("Add", x, net.norm(net.layer(x, CHANNELS, CHANNELS, (1, 3, 3)), CHANNELS)))
    net.output(x)
    assert assert_of_images(net).count("Transpose") == 2


def test_what_has_no_rule_reads_volumes() -> None:
    net = VolumeNet(opset=18)
    x = net.op("Transpose", images(net), perm=[0, 1, 3, 2, 4])
    x = net.op("Relu", net.op("Einsum", x, x, equation="abcde,abcde->abcde"))
    last = net.op("Transpose", x, perm=[0, 1, 3, 2, 4])
    net.output(net.op("Add", last, net.constant(np.ones((2, 1, 4, 1, 5)))))
    ends(net, last)
    assert_same(net)


def test_a_value_of_each_volume_and_frame_is_left_alone() -> None:
    net = VolumeNet(opset=18)
    x = images(net)
    net.output(net.op("Mul", x, net.op("ReduceMean", x, net.constant([3, 4]))))
    net.output(net.op("Concat", x, x, axis=4))
    net.output(net.op("ReduceMean", x, net.constant([1])))
    assert_same(net)


def test_a_branch_reads_the_volume() -> None:
    net = VolumeNet(opset=18)
    x = images(net)
    branch = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", [x], ["relu"])], "branch", [],
        [onnx.helper.make_tensor_value_info("relu", onnx.TensorProto.FLOAT, [None] * 5)],
    )  # fmt: skip
    net.output(net.op("If", net.constant(True), then_branch=branch, else_branch=branch), 2, CHANNELS, *SIZES)
    ends(net, x)
    assert_same(net)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("size", [5, 8])
def test_sizes_may_be_open(op: str, size: int) -> None:
    """All but the number of frames, where a kernel takes several of them and pixels around."""
    net = VolumeNet(opset=18)
    x = net.input("x", 2, 2, 4, size, size + 1, declared=["n", 2, 4, "h", "w"])
    x = net.op("Relu", net.layer(net.layer(x, 2, CHANNELS), CHANNELS, CHANNELS, (3, 1, 1)))
    x = net.op(op, x, kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    net.output(net.op("Add", x, net.layer(x, CHANNELS, CHANNELS, (1, 3, 3))))
    assert_of_images(net)


def test_the_number_of_frames_may_be_open() -> None:
    net = VolumeNet(opset=18)
    x = net.input("x", 2, 2, 4, 5, 6, declared=["n", 2, "d", "h", "w"])
    x = net.layer(net.layer(x, 2, CHANNELS, (1, 3, 3)), CHANNELS, CHANNELS, (3, 1, 1), strides=[2, 1, 1])
    x = net.op("Relu", x)
    net.output(net.layer(x, CHANNELS, 3, (1, 3, 3)))
    assert_of_images(net)


def test_a_graph_without_such_layers_stays() -> None:
    net = VolumeNet(opset=18)
    net.output(net.op("Relu", net.volume(2, *SIZES)))
    graph = GraphView(Model.load(net.model()))
    assert volumes_as_images(graph) is graph


def test_weights_of_another_type_stay() -> None:
    net = VolumeNet(opset=18)
    x = net.op("Cast", net.volume(2, *SIZES), to=onnx.TensorProto.DOUBLE)
    net.output(net.op("Conv", x, net.constant(np.ones((3, 2, 1, 1, 1)), dtype=np.float64)))
    view = volumes_as_images(GraphView(Model.load(net.model())))
    assert [node.op_type for node in view.nodes] == ["Cast", "Conv"]


@settings(max_examples=12, deadline=None)
@given(networks())
def test_any_network_computes_the_same(net: VolumeNet) -> None:
    assert_same(net)
