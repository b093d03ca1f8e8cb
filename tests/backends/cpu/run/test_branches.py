"""Sums of branches, plain and weighed by a softmax over them, as SKNet and ResNeSt have them."""

import numpy as np
import pytest
from sparse_nets import SparseNet, assert_same_at_batches

from sift_onnx.backends.cpu.run.region_program import RegionProgram

pytestmark = pytest.mark.usefixtures("every_region_pays")
SHAPES = {"x": (1, 6, 7, 5)}


def integers(net, *values):
    return net.constant(np.array(values, np.int64))


def summed(net, stack):
    return net.op("ReduceSum", stack, integers(net, 1), keepdims=0)


def logits(net, x, channels):
    mean = net.op("ReduceMean", x, axes=[2, 3], keepdims=1)
    return net.conv(net.op("Relu", net.conv(mean, channels, 4, 1)), 4, 2 * channels, 1)


def stacked(net, images):
    return net.op("Concat", *(net.op("Unsqueeze", image, integers(net, 1)) for image in images), axis=1)


def selective(axis=1, branches=2):
    """Branches of kernels of two sizes, as SKNet stacks them."""
    net = SparseNet(opset=17)
    x = net.input("x", 1, 6, 7, 5, declared=["n", 6, 7, 5])
    stack = stacked(net, [net.op("Relu", net.conv(x, 6, 8, kernel)) for kernel in (3, 1, 5)[:branches]])
    gates = logits(net, summed(net, stack), 8)
    weights = net.op("Softmax", net.op("Reshape", gates, integers(net, -1, 2, 8, 1, 1)), axis=axis)
    net.output(net.conv(summed(net, net.op("Mul", stack, weights)), 8, 4, 1))
    return net


def split_attention(cardinality=1, order=(0, 2, 1, 3)):
    """Halves of the channels of one convolution, as ResNeSt has them."""
    net = SparseNet(opset=17)
    x = net.input("x", 1, 6, 7, 5, declared=["n", 6, 7, 5])
    stack = net.op("Reshape", net.op("Relu", net.conv(x, 6, 16, 3)), integers(net, -1, 2, 8, 7, 5))
    gates = net.op("Reshape", logits(net, summed(net, stack), 8), integers(net, 0, cardinality, 2, 8 // cardinality))
    shares = net.op("Softmax", net.op("Transpose", gates, perm=list(order)), axis=1 if order[1] == 2 else 2)
    flat = net.op("Reshape", net.op("Reshape", shares, integers(net, 0, 16)), integers(net, 0, 16, 1, 1))
    weights = net.op("Reshape", flat, integers(net, 0, 2, 8, 1, 1))
    net.output(net.conv(summed(net, net.op("Mul", stack, weights)), 8, 4, 1))
    return net


@pytest.mark.parametrize("made", [selective(), split_attention(), split_attention(2)], ids=["SK", "split", "groups"])
def test_two_branches_are_one_part_with_what_is_around_them(made):
    program = assert_same_at_batches(made.model(), (1, 3, 17), SHAPES)
    assert [type(part) for part in program.parts] == [RegionProgram]


@pytest.mark.parametrize(
    "made",
    [selective(axis=2), split_attention(order=(0, 1, 2, 3)), split_attention(2, (0, 1, 2, 3))],
    ids=["over channels", "not turned", "groups not turned"],
)
def test_what_is_no_softmax_over_the_two_branches_stays_right(made):
    assert_same_at_batches(made.model(), (1, 3), SHAPES)


def test_a_product_that_is_read_elsewhere_is_made():
    net = SparseNet(opset=17)
    x = net.input("x", 1, 6, 7, 5, declared=["n", 6, 7, 5])
    stack = stacked(net, [net.conv(x, 6, 8, kernel) for kernel in (3, 1)])
    gates = net.op("Reshape", logits(net, summed(net, stack), 8), integers(net, -1, 2, 8, 1, 1))
    product = net.op("Mul", stack, net.op("Softmax", gates, axis=1))
    net.output(summed(net, product))
    net.output(net.op("Relu", product))
    assert_same_at_batches(net.model(), (1, 3), SHAPES)


def test_a_plain_sum_has_any_number_of_branches():
    net = SparseNet(opset=17)
    x = net.input("x", 1, 6, 7, 5, declared=["n", 6, 7, 5])
    net.output(net.conv(summed(net, stacked(net, [net.conv(x, 6, 8, k) for k in (1, 3, 5)])), 8, 4, 1))
    program = assert_same_at_batches(net.model(), (1, 17), SHAPES)
    assert [type(part) for part in program.parts] == [RegionProgram]


def test_magnitudes_and_maxima_without_their_axes():
    net = SparseNet(opset=17)
    x = net.op("Abs", net.conv(net.input("x", 1, 6, 7, 5, declared=["n", 6, 7, 5]), 6, 8, 3))
    net.output(net.dense(net.op("ReduceMax", x, axes=[2, 3], keepdims=0), 8, 5))
    program = assert_same_at_batches(net.model(), (1, 3, 17), SHAPES)
    assert [type(part) for part in program.parts] == [RegionProgram]
