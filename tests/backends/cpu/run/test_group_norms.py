"""Normalizations of images between sparse layers, as operators and as torch writes them in nodes."""

import numpy as np
import pytest
from sparse_nets import SparseNet, assert_same_as_onnxruntime, places

from sift_onnx.backends.lowering.specs import GroupNormalization

pytestmark = pytest.mark.usefixtures("every_region_pays")


def vector(net, size):
    return net.constant(np.linspace(0.5, 2, size, dtype=np.float32))


def ones(net, size):
    return net.constant(np.ones(size, np.float32))


def instance(net, x):
    return net.op("InstanceNormalization", x, vector(net, 6), vector(net, 6), epsilon=1e-3)


def group(net, x):
    return net.op("GroupNormalization", x, vector(net, 6), vector(net, 6), num_groups=3)


def group_by_nodes(net, x, sizes=(0, 3, -1), scale=1.0):
    apart = net.op("Reshape", x, net.constant(list(sizes), dtype=np.int64))
    scales = net.constant(np.full(3, scale, np.float32))
    norm = net.op("InstanceNormalization", apart, scales, net.constant(np.zeros(3, np.float32)))
    together = net.op("Reshape", norm, net.op("Shape", x))
    scaled = net.op("Mul", together, net.constant(np.linspace(0.5, 2, 6, dtype=np.float32).reshape(6, 1, 1)))
    return net.op("Add", scaled, net.constant(np.linspace(-1, 1, 6, dtype=np.float32).reshape(6, 1, 1)))


def between(operator, batch, opset=21):
    net = SparseNet(opset=opset)
    x = net.conv(net.input("x", batch, 4, 7, 9, declared=["n", 4, "h", "w"]), 4, 6, 3)
    net.output(net.conv(net.op("Sigmoid", operator(net, x)), 6, 4, 3))
    return net


@pytest.mark.parametrize("batch", [1, 3, 16, 17])
@pytest.mark.parametrize("operator", [instance, group, group_by_nodes])
def test_normalization_of_images(operator, batch):
    net = between(operator, batch)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert set(places(program).values()) <= {"kernels", "folded"}
    (part,) = program.parts
    # Scale and shift are the operator's own.
    assert [type(step.spec) for step in part.region.steps].count(GroupNormalization) == 1
    assert len(part.region.steps) == 4


@pytest.mark.parametrize("batch", [1, 16])
def test_group_normalization_with_a_scale_per_group(batch):
    def operator(net, x):
        return net.op("GroupNormalization", x, vector(net, 3), vector(net, 3), num_groups=3)

    net = between(operator, batch, opset=18)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert set(places(program).values()) == {"kernels"}


def test_scales_per_group_in_nodes_are_computed_as_they_are():
    net = between(lambda net, x: group_by_nodes(net, x, scale=0.5), 3)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert set(places(program).values()) <= {"kernels", "folded"}
