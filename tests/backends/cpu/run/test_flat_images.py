"""Convolutions of one axis, [n, c, l], and what lies between them."""

import numpy as np
import onnx
import pytest
from sparse_nets import SparseNet, assert_same_as_onnxruntime, assert_same_at_batches, left_to_onnxruntime

import sift_onnx
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.rules.flat_images import on_images
from sift_onnx.backends.lowering.specs import Conv, Depthwise, Joined, Range, Reshaped, Sliced

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


@pytest.mark.parametrize("axes", [{}, {"axes": [2]}])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_one_axis(mode, axes):
    net = SparseNet(opset=20)
    x = net.op("Relu", conv(net, net.input("x", 2, 4, 6, declared=["n", 4, 6]), 4, 6, 3))
    scales = net.constant([2.0] if axes else [1.0, 1.0, 2.0])
    sizes = net.constant([18] if axes else [2, 6, 18], dtype=np.int64)
    x = net.op("Resize", x, "", scales, mode=mode, **axes)
    if axes:
        x = net.op("Resize", x, "", "", sizes, mode=mode, **axes)
    net.output(net.op("ConvTranspose", x, net.weight(6, 3, 4, fan_in=12), strides=[2], pads=[1, 1]))
    program = assert_same_at_batches(net.model(), (1, 17))
    assert len(program.parts) == 1


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


@pytest.mark.parametrize("mode", ["reflect", "edge"])
@pytest.mark.parametrize("length", [13, "length"])
def test_one_axis_is_padded_by_what_it_has(mode, length):
    """As EnCodec's convolutions are: a slice of all of it lies between the padding and the layer."""
    net = SparseNet(opset=20)
    x = net.input("x", 2, 4, 13, declared=["n", 4, length])
    padded = net.op("Pad", x, net.constant([0, 0, 3, 0, 0, 1]), mode=mode)
    bounds = [net.constant([n]) for n in (0, 2**60, 2, 1)]
    y = net.op("Elu", conv(net, net.op("Slice", padded, *bounds), 4, 6, 3, pads=[0, 0]))
    again = net.op("Pad", net.op("Relu", y), net.constant([2, 2]), "", net.constant([2]), mode=mode)
    net.output(conv(net, again, 6, 4, 5))
    program = assert_same_at_batches(net.model(), (1, 17), {"x": (1, 4, 13)})
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1


def test_tokens_are_padded_by_what_they_have_in_onnxruntime():
    net = SparseNet(opset=20)
    x = net.dense(net.input("x", 2, 7, 4, declared=["n", 7, 4]), 4, 6)
    padded = net.op("Pad", x, net.constant([0, 2, 0, 0, 1, 0]), mode="reflect", name="padded")
    net.output(net.dense(padded, 6, 4))
    program = assert_same_at_batches(net.model(), (1, 17), {"x": (1, 7, 4)})
    assert left_to_onnxruntime(program)["padded"] == "it pads images or channels"


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
    y = conv(net, net.op("Atan", x), 6, 6, 3)
    net.output(net.op("Relu", net.op("Add", y, x)))
    program = assert_same_at_batches(net.model(), (1, 17), {"x": (1, 4, 13)})
    assert len(regions(program)) == 2


def test_functions_between_layers():
    """A vocoder's activation with a learned frequency per channel, x + sin(a x)^2 / a, and other functions."""
    net = SparseNet(opset=20)
    x = conv(net, net.input("x", 2, 4, 13, declared=["n", 4, "length"]), 4, 6, 3)
    frequency = net.constant(np.linspace(0.5, 2, 6, dtype=np.float32).reshape(1, 6, 1))
    wave = net.op("Pow", net.op("Sin", net.op("Mul", frequency, x)), net.constant(2.0))
    y = conv(net, net.op("Add", x, net.op("Div", wave, frequency)), 6, 6, 3)
    z = net.op("Div", net.op("Neg", net.op("Cos", y)), net.op("Exp", y))
    z = net.op("Add", net.op("Sqrt", net.op("Abs", z)), net.op("Reciprocal", net.op("Softplus", y)))
    net.output(conv(net, net.op("Log", net.op("Exp", z)), 6, 4, 3))
    program = assert_same_at_batches(net.model(), (1, 3, 17), {"x": (1, 4, 13)}, tolerance=1e-4)
    assert len(program.parts) == 1


def composed_gelu(net, x):
    """As torch's exporter writes it up to opset 19."""
    error = net.op("Erf", net.op("Div", x, net.constant(np.float32(np.sqrt(2)))))
    return net.op("Mul", net.op("Mul", x, net.op("Add", error, net.constant(1.0))), net.constant(0.5))


def composed_mish(net, x):
    """Up to opset 17."""
    return net.op("Mul", x, net.op("Tanh", net.op("Softplus", x)))


@pytest.mark.parametrize("activation", [composed_gelu, composed_mish])
def test_an_activation_of_several_nodes_is_a_part_of_the_layer_before_it(activation):
    """As in the feature extractors of wav2vec 2.0 and Whisper."""
    net = SparseNet(opset=17)
    x = net.input("x", 2, 4, 29, declared=["n", 4, "t"])
    for inputs, stride in ((4, 2), (8, 2), (8, 1)):
        x = activation(net, conv(net, x, inputs, 8, 3, strides=[stride]))
    net.output(x)
    program = assert_same_at_batches(net.model(), (1, 3, 17), {"x": (1, 4, 29)})
    (region,) = regions(program)
    assert [type(step.spec) for step in region.steps] == [Reshaped, Conv, Conv, Conv, Reshaped]


@pytest.mark.parametrize("halving", ["Slice", "Split"])
@pytest.mark.parametrize("mask", [(2, 1, 13), (2, 6, 13), (1, 1, 1), (2, 1, 1), (2, 6, 1)])
def test_gated_layers_with_a_mask_are_images_throughout(halving, mask):
    """As in a synthesizer of speech: halves of a layer's channels gate one another, padding is masked."""
    net = SparseNet(opset=17)
    x = net.input("x", 2, 4, 13, declared=["n", 4, "t"])
    kept = net.input("kept", *mask, declared=["n" if mask[0] == 2 else 1, mask[1], "t" if mask[2] == 13 else 1])

    def halves(y):
        if halving == "Split":
            return net.op("Split", y, net.constant([6, 6]), axis=1, outputs=2)
        bounds = [[net.constant([value]) for value in (low, low + 6, 1)] for low in (0, 6)]
        return [net.op("Slice", y, *each) for each in bounds]

    x = net.op("Mul", conv(net, x, 4, 6, 1), kept)
    for _ in range(2):
        left, right = halves(conv(net, x, 6, 12, 3))
        y = conv(net, net.op("Mul", net.op("Tanh", left), net.op("Sigmoid", right)), 6, 6, 1)
        x = net.op("Mul", net.op("Add", x, y), kept)
    net.output(conv(net, x, 6, 4, 3))
    shapes = {"x": (1, 4, 13), "kept": (1, *mask[1:])} if mask[0] == 2 else {"x": (1, 4, 13)}
    program = assert_same_at_batches(net.model(), (1, 3, 17), shapes)
    (region,) = regions(program)
    assert {step.view for step in region.steps if not isinstance(step.spec, Reshaped)} == {"image"}
    # Of the inputs, of which one is read twice, and the output.
    assert sum(isinstance(step.spec, Reshaped) for step in region.steps) <= 5


@pytest.mark.parametrize("op", ["Mul", "Add", "Sub", "Max", "Div"])
@pytest.mark.parametrize("shape", [(1, 6, 13), (1, 6, 1), (1, 1, 13), (2, 1, 13), (2, 6, 1), (2, 1, 1), (2, 6, 13)])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_second_operand_from_outside_has_any_sizes(op, shape, is_first):
    """As images where kernels have that, and else as rows or in onnxruntime."""
    net = SparseNet(opset=17)
    x = conv(net, net.input("x", 2, 4, 13, declared=["n", 4, 13]), 4, 6, 3)
    other = net.input("other", *shape, declared=["n" if shape[0] == 2 else 1, *shape[1:]])
    operands = (other, x) if is_first else (x, other)
    net.output(conv(net, net.op(op, *operands), 6, 4, 3))
    shapes = {"x": (1, 4, 13)} | ({"other": (1, *shape[1:])} if shape[0] == 2 else {})
    # Quotients by what is nearly zero are large.
    assert_same_at_batches(net.model(), (2, 17), shapes, **({"tolerance": 1e-3} if op == "Div" else {}))


def test_bytes_that_are_cut_stay_bytes():
    """Where a part of onnxruntime lies before them, they are made an image themselves."""
    cut = Sliced((Range(1, 0, 2, of=4),))
    step = Step(cut, ("x",), "y", "image", "image", (0,), dtype=DType.UINT8, result_dtype=DType.UINT8)
    steps = on_images(step, (2, 4, 5), {})
    assert [type(own.spec) for own in steps] == [Reshaped, Sliced, Reshaped]
    assert {(own.dtype, own.result_dtype) for own in steps} == {(DType.UINT8, DType.UINT8)}


def test_a_model_opens_again_from_a_cache(tmp_path):
    net = conformer()
    first, second = (
        sift_onnx.InferenceSession(net.model(), threads=1, packed_cache=tmp_path / name) for name in ("a", "a")
    )
    np.testing.assert_array_equal(first.run(None, net.feeds)[0], second.run(None, net.feeds)[0])


def group_norm(net, x, channels, groups=2):
    """As torch's exporter writes it: groups are channels of an InstanceNormalization, its own scale follows."""
    apart = net.op("Reshape", x, net.constant([0, groups, -1]))
    ones, zeros = net.constant(np.ones(groups, np.float32)), net.constant(np.zeros(groups, np.float32))
    x = net.op("Reshape", net.op("InstanceNormalization", apart, ones, zeros), net.op("Shape", x))
    scale, shift = (np.linspace(low, 2, channels, dtype=np.float32).reshape(channels, 1) for low in (0.5, -1))
    return net.op("Add", net.op("Mul", x, net.constant(scale)), net.constant(shift))


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize("left_out", ["", "padding", "joining", "norms"])
def test_a_net_of_one_axis_is_one_part(left_out, opset):
    """A network of two resolutions: padding to one side, slopes per channel, norms of groups, a joined shortcut."""
    net = SparseNet(opset=opset)
    x = net.input("x", 2, 4, 14, declared=["n", 4, 14])
    if left_out != "padding":
        x = net.op("Pad", x, net.constant([0, 0, 2, 0, 0, 0]), net.constant(np.float32(0.5)))
    pads = {"pads": [0, 0]} if left_out != "padding" else {}
    first = net.op("PRelu", conv(net, x, 4, 6, 3, **pads), net.constant(np.linspace(-1, 1, 6).reshape(6, 1)))
    y = conv(net, first, 6, 8, 2, strides=[2], pads=[0, 0])
    if left_out != "norms":
        y = group_norm(net, y, 8)
        slopes = [net.constant(np.linspace(low, 1, 8, dtype=np.float32)) for low in (0.2, -1)]
        y = net.op("InstanceNormalization", net.op("Mul", y, net.op("Sigmoid", y)), *slopes)
    y = net.op("ConvTranspose", y, net.weight(8, 6, 2), net.constant(np.linspace(-1, 1, 6)), strides=[2])
    y = net.op("Concat", y, first, axis=-2) if left_out != "joining" else net.op("Add", y, first)
    net.output(conv(net, y, 12 if left_out != "joining" else 6, 4, 3))
    program = assert_same_at_batches(net.model(), (1, 3, 17), {"x": (1, 4, 14)})
    assert len(program.parts) == 1


def test_channels_of_values_from_outside_are_joined_for_a_convolution():
    net = SparseNet(opset=20)
    x, y = net.input("x", 2, 4, 13, declared=["n", 4, 13]), net.input("y", 2, 3, 13, declared=["n", 3, 13])
    net.output(conv(net, net.op("Concat", x, y, axis=1), 7, 6, 3))
    program = assert_same_at_batches(net.model(), (1, 17), {"x": (1, 4, 13), "y": (1, 3, 13)})
    (region,) = regions(program)
    assert [step.view for step in region.steps if isinstance(step.spec, Joined)] == ["image"]


@pytest.mark.parametrize("table", [(1, 6, 13), (6, 13), (13,), (1, 1, 13)])
def test_a_stored_table_is_added_or_left_to_onnxruntime(table):
    net = SparseNet(opset=20)
    x = conv(net, net.input("x", 2, 4, 13, declared=["n", 4, 13]), 4, 6, 3)
    y = net.op("Add", x, net.constant(np.arange(np.prod(table), dtype=np.float32).reshape(table)))
    net.output(conv(net, y, 6, 4, 3))
    assert_same_at_batches(net.model(), (1, 17), {"x": (1, 4, 13)})
