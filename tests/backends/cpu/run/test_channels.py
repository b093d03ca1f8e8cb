"""Concatenations, slices, shuffles and gates of channels, between sparse layers and against onnxruntime."""

import itertools

import numpy as np
import pytest
from sparse_nets import SparseNet, assert_same_as_onnxruntime, places

from sift_onnx.backends.lowering.specs import Joined, Sliced

pytestmark = pytest.mark.usefixtures("every_region_pays")

BATCHES = [1, 3, 16, 17, 35]


def int64(net, *values):
    return net.constant(list(values), dtype=np.int64)


def images(batch, channels=6, size=7, opset=20):
    net = SparseNet(opset=opset)
    return net, net.conv(net.input("x", batch, 4, size, size, declared=["n", 4, "h", "w"]), 4, channels, 3)


def images_of_size_known(batch):
    net = SparseNet()
    return net, net.conv(net.input("x", batch, 4, 7, 7, declared=["n", 4, 7, 7]), 4, 6, 3)


def assert_whole(net):
    """One region does it all, and right."""
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert set(places(program).values()) <= {"kernels", "folded"}
    (part,) = program.parts
    return part


def calls_of(part, batch, *shape):
    """The steps that are run for a batch, by their specs; copies that were left out are not among them."""
    prepared = part.prepare([(batch, *shape)])
    return [type(part.region.steps[i].spec) for i in prepared.slabs[0][1].steps if i is not None]


@pytest.mark.parametrize("batch", BATCHES)
def test_concat_of_branches(batch):
    net, x = images(batch)
    branches = [net.op("Relu", net.conv(x, 6, width, kernel)) for width, kernel in ((3, 1), (5, 3), (2, 5))]
    net.output(net.conv(net.op("Concat", *branches, axis=1), 10, 4, 3))
    part = assert_whole(net)
    assert Joined not in calls_of(part, batch, 4, 7, 7)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("nested", [False, True])
def test_dense_blocks_are_ranges_of_their_last_concatenation(batch, nested):
    net, x = images(batch, 8)
    features, width = [x], 8
    for _ in range(4):
        joined = net.op("Concat", *features, axis=1) if len(features) > 1 else x
        new = net.conv(net.op("Relu", joined), width, 3, 3)
        features = [joined, new] if nested else [*features, new]
        width += 3
    net.output(net.conv(net.op("Concat", *features, axis=1), width, 4, 1))
    part = assert_whole(net)
    assert Joined not in calls_of(part, batch, 4, 7, 7)


@pytest.mark.parametrize("batch", BATCHES)
def test_an_operand_that_is_an_output_or_an_input_is_copied(batch):
    net = SparseNet()
    x = net.input("x", batch, 4, 7, 7, declared=["n", 4, 7, 7])
    y = net.op("Tanh", net.conv(x, 4, 6, 3))
    joined = net.op("Concat", y, x, y, axis=1)
    net.output(y)
    net.output(net.conv(joined, 16, 3, 3))
    net.output(joined)
    assert_whole(net)


@pytest.mark.parametrize("batch", BATCHES)
def test_two_concatenations_want_one_operand(batch):
    net, x = images(batch)
    a, b, c = (net.conv(x, 6, 4, 3) for _ in range(3))
    first, second = net.op("Concat", a, b, axis=1), net.op("Concat", c, a, axis=1)
    net.output(net.op("Add", net.conv(first, 8, 5, 1), net.conv(second, 8, 5, 1)))
    assert_whole(net)


@pytest.mark.parametrize("batch", BATCHES)
def test_a_concatenation_may_be_the_middle_of_another(batch):
    net, x = images(batch)
    a, b, c = (net.conv(x, 6, width, 3) for width in (3, 4, 5))
    net.output(net.conv(net.op("Concat", b, c, axis=1), 9, 4, 3))
    net.output(net.conv(net.op("Concat", a, b, c, axis=1), 12, 4, 3))
    part = assert_whole(net)
    assert Joined not in calls_of(part, batch, 4, 7, 7)


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("sliced", [False, True])
def test_a_sum_does_not_overwrite_what_its_convolution_reads(batch, sliced):
    net, x = images(batch, 16, size=40)
    x = net.op("Tanh", x)
    read = net.op("Split", x, int64(net, 5, 11), outputs=2, axis=1)[1] if sliced else x
    net.output(net.conv(net.op("Add", net.conv(read, 11 if sliced else 16, 16, 5), x), 16, 4, 1))
    assert_whole(net)


@pytest.mark.parametrize("opset", [11, 13, 20])
@pytest.mark.parametrize("batch", BATCHES)
def test_halves_go_their_ways_and_meet_again(batch, opset):
    """As in CSP blocks: Split, layers on one part, Concat of all."""
    net, x = images(batch, 8, opset=opset)
    a, b = net.op("Split", net.op("Relu", x), outputs=2, axis=1, **({"num_outputs": 2} if opset >= 18 else {}))
    c = net.op("Add", b, net.op("Relu", net.conv(net.op("Sigmoid", net.conv(b, 4, 4, 3)), 4, 4, 3)))
    net.output(net.conv(net.op("Concat", a, b, c, axis=1), 12, 5, 1))
    part = assert_whole(net)
    # The halves are together what was split: they lie where the concatenation has them.
    assert not {Joined, Sliced} & set(calls_of(part, batch, 4, 7, 7))


@pytest.mark.parametrize("batch", BATCHES)
def test_parts_of_uneven_sizes(batch):
    net, x = images(batch, 9)
    parts = net.op("Split", x, int64(net, 2, 4, 3), outputs=3, axis=1)
    net.output(net.op("Concat", net.conv(parts[1], 4, 5, 3), parts[0], axis=1))
    net.output(net.conv(parts[2], 3, 2, 1))
    assert_whole(net)


@pytest.mark.parametrize("batch", [1, 17])
@pytest.mark.parametrize("bounds", [(0, 3, 1), (2, 2**63 - 1, 1), (-4, -1, 1), (1, 6, 2), (-1, -(2**63), -1)])
def test_slices_of_channels(batch, bounds):
    start, stop, step = bounds
    net, x = images(batch)
    sliced = net.op("Slice", x, int64(net, start), int64(net, stop), int64(net, 1), int64(net, step))
    width = len(range(6)[start:stop:step])
    net.output(net.conv(sliced, width, 4, 3))
    assert_whole(net)


@pytest.mark.parametrize("batch", [1, 17])
def test_channels_by_their_indices(batch):
    net, x = images(batch)
    net.output(net.conv(net.op("Gather", x, int64(net, 5, -6, 2, 2), axis=1), 4, 4, 3))
    assert_whole(net)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("is_open", [False, True])
def test_channel_shuffle(batch, is_open):
    net, x = images(batch, 6) if is_open else images_of_size_known(batch)
    if is_open:
        n, c, h, w = (net.op("Gather", net.op("Shape", x), int64(net, axis)) for axis in range(4))
        apart = net.op("Concat", n, int64(net, 2), net.op("Div", c, int64(net, 2)), h, w, axis=0)
        together = net.op("Concat", n, c, h, w, axis=0)
    else:
        apart, together = int64(net, -1, 2, 3, 7, 7), int64(net, -1, 6, 7, 7)
    turned = net.op("Transpose", net.op("Reshape", x, apart), perm=[0, 2, 1, 3, 4])
    net.output(net.conv(net.op("Reshape", turned, together), 6, 4, 3))
    assert_whole(net)


@pytest.mark.parametrize("perm", [[0, 1, 2, 4, 3], [0, 2, 1, 4, 3], [0, 3, 1, 2, 4]])
def test_what_is_no_shuffle_is_computed_as_it_is(perm):
    net = SparseNet()
    x = net.conv(net.input("x", 3, 4, 6, 6, declared=["n", 4, 6, 6]), 4, 6, 3)
    turned = net.op("Transpose", net.op("Reshape", x, int64(net, -1, 2, 3, 6, 6)), perm=perm)
    net.output(net.conv(net.op("Reshape", turned, int64(net, -1, 6, 6, 6)), 6, 4, 3))
    assert_whole(net)


def gate_by_convolutions(net, x, width):
    mean = net.op("GlobalAveragePool", x)
    return net.op("HardSigmoid", net.conv(net.op("Relu", net.conv(mean, width, 3)), 3, width))


def gate_by_rows(net, x, width):
    mean = net.op("ReduceMean", x, int64(net, 2, 3), keepdims=0)
    rows = net.op("Sigmoid", net.dense(net.op("Relu", net.dense(mean, width, 3)), 3, width))
    return net.op("Unsqueeze", rows, int64(net, 2, 3))


def gate_by_rows_reshaped(net, x, width):
    mean = net.op("Flatten", net.op("GlobalAveragePool", x))
    rows = net.op("Sigmoid", net.dense(net.op("Relu", net.dense(mean, width, 3)), 3, width))
    return net.op("Reshape", rows, int64(net, -1, width, 1, 1))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    ("gate", "gate_first"),
    list(itertools.product([gate_by_convolutions, gate_by_rows, gate_by_rows_reshaped], [False, True])),
)
def test_squeeze_and_excite(batch, gate, gate_first):
    net, x = images(batch)
    gates = gate(net, x, 6)
    net.output(net.conv(net.op("Mul", *((gates, x) if gate_first else (x, gates))), 6, 4, 3))
    assert_whole(net)


@pytest.mark.parametrize("op", ["Add", "Sub"])
def test_arithmetic_with_a_value_per_channel(op):
    net, x = images(17)
    net.output(net.conv(net.op("Relu", net.op(op, x, net.op("GlobalAveragePool", x))), 6, 4, 3))
    assert_whole(net)


@pytest.mark.parametrize("rows", [(1, 5), (40, 5), (3, 7, 5)])
def test_columns_of_matrices(rows):
    net = SparseNet()
    x = net.dense(net.input("x", *rows, declared=[*"abc"[: len(rows) - 1], 5]), 5, 6)
    a, b = net.op("Split", x, int64(net, 2, 4), outputs=2, axis=-1)
    net.output(net.dense(net.op("Concat", net.op("Relu", b), x, a, axis=-1), 12, 4))
    assert_whole(net)


@pytest.mark.parametrize("slopes", [(), (1,), (6, 1, 1), (1, 6, 1, 1)])
@pytest.mark.parametrize("batch", [1, 17])
def test_parametric_relu(slopes, batch):
    net, x = images(batch)
    values = np.linspace(-0.5, 0.5, 6, dtype=np.float32)[: int(np.prod(slopes))].reshape(slopes)
    net.output(net.conv(net.op("PRelu", x, net.constant(values)), 6, 4, 3))
    assert_whole(net)
