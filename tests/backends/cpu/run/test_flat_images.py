"""Convolutions of one axis, [n, c, l], and what lies between them."""

import numpy as np
import onnx
import pytest
from sparse_nets import SparseNet, assert_same_as_onnxruntime, assert_same_at_batches

import sift_onnx
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.lowering.specs import Conv, Depthwise, Reshaped

pytestmark = pytest.mark.usefixtures("every_region_pays")


def conv(net, x, inputs, outputs, kernel, group=1, **attributes):
    weight = net.weight(outputs, inputs // group, kernel, fan_in=inputs // group * kernel)
    attributes = {"pads": [kernel // 2] * 2, "group": group, **attributes}
    return net.op("Conv", x, weight, net.constant(np.linspace(-1, 1, outputs, dtype=np.float32)), **attributes)


def conformer(length=11):
    """The convolution module of a Conformer: a gate, a depthwise layer, a normalization, a residual."""
    net = SparseNet(opset=20)
    x = net.input("x", 2, length, 8, declared=["n", length, 8])
    y = net.op("Transpose", x, perm=[0, 2, 1])
    gate = net.op("Mul", conv(net, y, 8, 8, 1), net.op("Sigmoid", conv(net, y, 8, 8, 1)))
    deep = conv(net, gate, 8, 8, 5, group=8)
    vectors = [net.constant(np.linspace(low, 2, 8, dtype=np.float32)) for low in (0.5, -1, -0.5, 0.3)]
    normed = net.op("BatchNormalization", deep, *vectors)
    y = conv(net, net.op("Mul", normed, net.op("Sigmoid", normed)), 8, 8, 1)
    net.output(net.op("Add", net.op("Transpose", y, perm=[0, 2, 1]), x))
    return net


def regions(program):
    return [part.region for part in program.parts if isinstance(part, RegionProgram)]


def test_a_conformer_module_is_one_part_of_images():
    program = assert_same_at_batches(conformer().model(), (1, 3, 17), {"x": (1, 11, 8)})
    assert len(program.parts) == 1
    (region,) = regions(program)
    assert sum(isinstance(step.spec, (Conv, Depthwise)) for step in region.steps) == 4
    # Between the layers nothing is reshaped: one at either end for each that reads or gives rows.
    assert sum(isinstance(step.spec, Reshaped) for step in region.steps) <= 4


@pytest.mark.parametrize("attributes", [
    {"strides": [2]}, {"dilations": [2], "pads": [2, 2]}, {"pads": [0, 2]}, {"auto_pad": "SAME_UPPER", "pads": None},
    {"group": 2},
], ids=str)  # fmt: skip
def test_windows_of_one_axis(attributes):
    attributes = dict(attributes)
    net = SparseNet(opset=20)
    x = net.input("x", 2, 4, 13, declared=["n", 4, 13])
    y = net.op("Relu", conv(net, x, 4, 6, 3, attributes.pop("group", 1), **attributes))
    y = net.op("MaxPool", y, kernel_shape=[2], strides=[2])
    net.output(conv(net, net.op("AveragePool", y, kernel_shape=[3], pads=[1, 1]), 6, 4, 1))
    model = net.model()
    for node in model.graph.node:
        empty = [a for a in node.attribute if a.type == onnx.AttributeProto.UNDEFINED]
        for attribute in empty:
            node.attribute.remove(attribute)
    program = assert_same_at_batches(model, (1, 17), {"x": (1, 4, 13)})
    assert len(program.parts) == 1


def test_lengths_may_be_open():
    net = SparseNet(opset=20)
    x = net.input("x", 2, 4, 13, declared=["n", 4, "length"])
    net.output(conv(net, net.op("Relu", conv(net, x, 4, 6, 3)), 6, 4, 5))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    for length in (5, 40):
        feeds = {"x": np.random.default_rng(length).standard_normal((3, 4, length)).astype(np.float32)}
        assert_same_as_onnxruntime(net.model(), feeds, program)
    assert len(program.parts) == 1


def test_layers_on_either_side_of_what_onnxruntime_has():
    net = SparseNet(opset=20)
    x = conv(net, net.input("x", 2, 4, 13, declared=["n", 4, 13]), 4, 6, 3)
    y = conv(net, net.op("Cos", x), 6, 6, 3)
    net.output(net.op("Relu", net.op("Add", y, x)))
    program = assert_same_at_batches(net.model(), (1, 17), {"x": (1, 4, 13)})
    assert len(regions(program)) == 2


def test_a_model_opens_again_from_a_cache(tmp_path):
    net = conformer()
    first, second = (
        sift_onnx.InferenceSession(net.model(), threads=1, packed_cache=tmp_path / name) for name in ("a", "a")
    )
    np.testing.assert_array_equal(first.run(None, net.feeds)[0], second.run(None, net.feeds)[0])
