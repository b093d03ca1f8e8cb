"""Wide with ``init="embed"`` on networks and blocks: they compute what they did, at exactly their cost."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from embedded_models import as_trained, embedded, feed, net_of, squeeze_and_excitation
from nets import Net

from sift_onnx.models import export

# Networks from both exporters.


def export_of(network: str, width: float, **options: Any) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        export(network, Path(folder) / "m.onnx", width=width, num_classes=10, **options)
        return as_trained(onnx.load(Path(folder) / "m.onnx"))


@pytest.mark.parametrize(
    ("network", "width", "keep_batch_norm", "sparsity"),
    [
        ("resnet18-cifar", 0.25, False, "0.5"),
        ("resnet18-cifar", 0.25, True, "0.9"),
        ("resnet50-cifar", 0.25, False, "0.75"),
        ("mobilenetv2-cifar", 0.5, False, "0.9"),
        pytest.param("resnet50-cifar", 0.25, True, "0.5", marks=pytest.mark.slow),
        pytest.param("mobilenetv2-cifar", 0.5, True, "0.75", marks=pytest.mark.slow),
    ],
)
def test_a_trained_network_keeps_its_outputs(network: str, width: float, keep_batch_norm: bool, sparsity: str) -> None:
    proto = export_of(network, width, keep_batch_norm=keep_batch_norm)
    assert any(node.op_type == "BatchNormalization" for node in proto.graph.node) == keep_batch_norm
    report = embedded(proto, {proto.graph.input[0].name: feed((1, 3, 32, 32))}, sparsity).report
    assert report["totals"]["weight_macs_after"] == report["totals"]["weight_macs_before"]
    assert report["totals"]["nnz_after"] == report["totals"]["nnz_before"]
    assert {layer["status"] for layer in report["layers"]} == {"sparse"}


@pytest.mark.slow
def test_an_export_of_dynamo_with_a_dynamic_batch_keeps_its_outputs() -> None:
    proto = export_of("mobilenetv2-cifar", 0.25, exporter="dynamo", batch="dynamic", keep_batch_norm=False)
    embedded(proto, {proto.graph.input[0].name: feed((3, 3, 32, 32))})


# What blocks of networks do to features.


def dense_block(net: Net) -> None:
    x = net.images(6)
    for i in range(3):
        grown = net.conv(net.op("Relu", x), 6 + 4 * i, 4, 3, name=f"layer{i}")
        x = net.op("Concat", x, grown, axis=1)
    net.images_end(x, 18)


def grouped(net: Net) -> None:
    x = net.images(12)
    net.images_end(net.op("Add", x, net.conv(net.op("Relu", net.conv(x, 12, 12, 3, group=3)), 12, 12)), 12)


def depthwise_multiplier(net: Net) -> None:
    net.images_end(net.op("Relu", net.conv(net.images(6), 6, 12, 3, group=6)), 12)


def channel_shuffle(net: Net) -> None:
    x = net.op("Reshape", net.conv(net.images(12), 12, 12, group=3), net.constant([1, 3, 4, 8, 8]))
    x = net.op("Reshape", net.op("Transpose", x, perm=[0, 2, 1, 3, 4]), net.constant([1, 12, 8, 8]))
    net.images_end(net.conv(x, 12, 12, 3, group=12), 12)


def two_branches(net: Net) -> None:
    x = net.images(8)
    kept, other = net.op("Split", x, axis=1, outputs=2, num_outputs=2)
    x = net.op("Concat", kept, net.op("Relu", net.conv(other, 4, 4)), axis=1)
    x = net.op("Reshape", x, net.constant([1, 2, 4, 8, 8]))
    x = net.op("Reshape", net.op("Transpose", x, perm=[0, 2, 1, 3, 4]), net.constant([1, 8, 8, 8]))
    ends = [net.op("Slice", x, *(net.constant([n]) for n in bounds)) for bounds in ((0, 4, 1), (4, 8, 1))]
    net.images_end(net.op("Concat", ends[1], net.conv(ends[0], 4, 4, 3), axis=1), 8)


def flattened(net: Net) -> None:
    x = net.op("Flatten", net.op("Relu", net.images(5, size=4)))
    x = net.op("Gemm", x, net.weight(7, 80, name="fc.weight"), net.weight(7, fan_in=1), transB=1, name="fc")
    net.output(net.op("Gemm", net.op("Relu", x), net.weight(7, 3, name="out.weight"), name="out"))


def flattened_channels_last(net: Net) -> None:
    x = net.op("Flatten", net.op("Transpose", net.images(5, size=4), perm=[0, 2, 3, 1]))
    net.output(net.dense(net.op("Relu", net.dense(x, 80, 7)), 7, 3))


def padded_shortcut(net: Net) -> None:
    x = net.images(6)
    shortcut = net.op("Pad", x, net.constant([0, 2, 0, 0, 0, 4, 0, 0]))
    net.images_end(net.op("Add", shortcut, net.conv(x, 6, 12, 3)), 12)


def upsampled(net: Net) -> None:
    x = net.op("ConvTranspose", net.images(6), net.weight(6, 4, 2, 2, name="up.weight"), strides=[2, 2], name="up")
    net.images_end(net.op("Resize", x, "", net.constant([1.0, 1.0, 2.0, 2.0]), mode="nearest"), 4)


def depth_to_space(net: Net) -> None:
    net.images_end(net.op("DepthToSpace", net.conv(net.images(6), 6, 12), blocksize=2, mode="CRD"), 3)


def sampled(net: Net) -> None:
    """At places of a grid, and within regions, as detectors do."""
    grid = net.constant(np.random.default_rng(2).uniform(-1, 1, (1, 6, 6, 2)).astype(np.float32))
    x = net.op("CenterCropPad", net.op("GridSample", net.images(6), grid), net.constant([9, 9]), axes=[2, 3])
    boxes = net.constant([[1.0, 1.0, 5.0, 5.0]])
    net.images_end(net.op("RoiAlign", x, boxes, net.constant([0]), output_height=3, output_width=3), 6)


def blocks_to_images(net: Net) -> None:
    x = net.op("Transpose", net.tokens(12, length=16), perm=[0, 2, 1])
    net.images_end(net.op("Col2Im", x, net.constant([8, 8]), net.constant([2, 2]), strides=[2, 2]), 3)


def rows_that_indices_point_at(net: Net) -> None:
    x = net.tokens(8)
    rows = net.op("GatherND", x, net.constant([[0, 1], [0, 4]]))
    net.tokens_end(net.op("ScatterND", x, net.constant([[0, 2], [0, 0]]), rows), 8)


def normalized_by_instance(net: Net) -> None:
    gamma, beta = net.weight(6, fan_in=1), net.weight(6, fan_in=1)
    net.images_end(net.op("InstanceNormalization", net.images(6), gamma, beta), 6)


def normalized_by_groups(net: Net) -> None:
    x = net.op("GroupNormalization", net.images(8), net.weight(8), net.weight(8, fan_in=9), num_groups=2, name="norm")
    net.images_end(x, 8)


def normalized_by_groups_in_primitives(net: Net) -> None:
    """As exporters write it before opset 21."""
    x = net.op("Reshape", net.images(8), net.constant([0, 2, -1]))
    x = net.op("InstanceNormalization", x, net.constant(np.ones(2, np.float32)), net.constant(np.zeros(2, np.float32)))
    x = net.op("Reshape", x, net.constant([1, 8, 8, 8]))
    net.images_end(net.op("Add", net.op("Mul", x, net.weight(8, 1, 1)), net.weight(8, 1, 1)), 8)


def residual_stream_normalized_as_one_group(net: Net) -> None:
    """As in networks that mix positions by pooling."""
    x = net.images(6)
    for i in range(2):
        scale, shift = net.constant(np.linspace(0.5, 1.5, 6)), net.weight(6, fan_in=9)
        y = net.op("GroupNormalization", x, scale, shift, num_groups=1, epsilon=0.1, name=f"norm{i}")
        y = net.op("AveragePool", y, kernel_shape=[3, 3], pads=[1, 1, 1, 1]) if i == 0 else net.conv(y, 6, 12)
        x = net.op("Add", x, y if i == 0 else net.conv(net.op("Gelu", y), 12, 6))
    net.images_end(x, 6)


def one_group_in_primitives(net: Net) -> None:
    """As TorchScript's exporter writes it; the stream has a mean that others see."""
    x = net.images(6)
    y = net.op("Reshape", x, net.constant([0, 1, -1]))
    y = net.op("InstanceNormalization", y, net.constant([1.0]), net.constant([0.0]), epsilon=0.1)
    y = net.op("Reshape", y, net.op("Shape", x))
    y = net.op("Add", net.op("Mul", y, net.weight(6, 1, 1)), net.weight(6, 1, 1))
    net.images_end(net.op("Add", x, y), 6)


def scaled_and_sloped(net: Net) -> None:
    x = net.op("Mul", net.images(6), net.weight(6, 1, 1, fan_in=1))
    x = net.op("PRelu", net.op("Div", x, net.constant(np.linspace(1, 2, 6).reshape(6, 1, 1))), net.weight(6, 1, 1))
    net.images_end(net.op("Sub", x, net.weight(6, 1, 1, fan_in=1)), 6)


def subtracted_and_divided(net: Net) -> None:
    """One parameter that is read twice: what is added to it must fit both."""
    shared = net.constant(np.linspace(1, 2, 6).reshape(6, 1, 1))
    net.images_end(net.op("Div", net.op("Sub", net.images(6), shared), shared), 6)


def roots_and_quotients(net: Net) -> None:
    """Per-channel standard deviations, as tools write normalizations in nodes; a soft plus, and a division by it."""
    x = net.images(6)
    centred = net.op("Sub", x, net.op("ReduceMean", x, net.constant([2, 3])))
    variance = net.op("ReduceMean", net.op("Mul", centred, centred), net.constant([2, 3]))
    x = net.op("Div", centred, net.op("Sqrt", net.op("Add", variance, net.constant(0.1))))
    soft = net.op("Log", net.op("Add", net.op("Exp", net.op("Clip", x, "", net.constant(9.0))), net.constant(1.0)))
    net.images_end(net.op("Add", net.op("Div", x, soft), net.op("Pow", soft, net.constant(0.5))), 6)


def root_of_what_is_at_least_zero(net: Net) -> None:
    """A variance as a difference of means, which rounding may make negative, as flax writes it."""
    x = net.images(6)
    mean = net.op("ReduceMean", x, net.constant([2, 3]))
    squares = net.op("ReduceMean", net.op("Mul", x, x), net.constant([2, 3]))
    variance = net.op("Max", net.constant(0.0), net.op("Sub", squares, net.op("Mul", mean, mean)))
    deviation = net.op("Sqrt", net.op("Add", variance, net.constant(0.1)))
    net.images_end(net.op("Mul", net.op("Sub", x, mean), net.op("Reciprocal", deviation)), 6)


def gated_tokens(net: Net) -> None:
    x = net.dense(net.tokens(8), 8, 12)
    a, b = net.op("Split", x, net.constant([6, 6]), axis=-1, outputs=2)
    net.tokens_end(net.op("Mul", a, net.op("Sigmoid", b)), 6)


def mean_that_is_an_output(net: Net) -> None:
    x = net.op("Relu", net.dense(net.tokens(8), 8, 12))
    mean = net.op("ReduceMean", x, net.constant([-1]))
    net.tokens_end(net.op("Add", x, mean), 12)
    net.output(mean)


def weight_stored_in_halves(net: Net) -> None:
    weight = net.constant(np.random.default_rng(0).standard_normal((12, 12)).astype(np.float16), dtype=np.float16)
    x = net.op("Relu", net.dense(net.tokens(8), 8, 12))
    x = net.op("MatMul", x, net.op("Cast", weight, to=onnx.TensorProto.FLOAT))
    net.tokens_end(x, 12)


BLOCKS = [
    weight_stored_in_halves,
    mean_that_is_an_output,
    dense_block,
    squeeze_and_excitation,
    grouped,
    depthwise_multiplier,
    channel_shuffle,
    two_branches,
    flattened,
    flattened_channels_last,
    padded_shortcut,
    upsampled,
    depth_to_space,
    sampled,
    blocks_to_images,
    rows_that_indices_point_at,
    normalized_by_instance,
    normalized_by_groups,
    normalized_by_groups_in_primitives,
    residual_stream_normalized_as_one_group,
    one_group_in_primitives,
    scaled_and_sloped,
    subtracted_and_divided,
    roots_and_quotients,
    root_of_what_is_at_least_zero,
    gated_tokens,
]


@pytest.mark.parametrize("sparsity", ["0.5", "0.75", pytest.param("0.9", marks=pytest.mark.slow)])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_keeps_its_outputs(block: Callable[[Net], None], sparsity: str) -> None:
    net = net_of(block, opset=21)
    result = embedded(net.model(), net.feeds, sparsity)
    assert not [entry for entry in result.report["pinned"] if "with the original in it" in entry["reason"]]
