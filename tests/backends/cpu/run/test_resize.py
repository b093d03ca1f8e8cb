"""Images of other sizes between sparse layers: Resize, Upsample, Pad, slices of pixels, ConvTranspose, DepthToSpace."""

import itertools

import numpy as np
import pytest
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, places, reasons

from sift_onnx.backends.cpu.lower.weights import pays
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.lowering.specs import Conv, PixelCopy
from sift_onnx.errors import UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")


def int64(net, *values):
    return net.constant(list(values), dtype=np.int64)


def between(operator, batch=17, opset=20, is_open=True, width=8, before=8):
    """x -> conv -> operator(net, x) -> conv -> y"""
    net = SparseNet(opset=opset)
    declared = ["n", 4, *(["h", "w"] if is_open else [7, 5])]
    x = net.conv(net.input("x", batch, 4, 7, 5, declared=declared), 4, before, 3)
    net.output(net.conv(operator(net, net.op("Relu", x)), width, 4, 3))
    return net


def assert_whole(net):
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert set(places(program).values()) <= {"kernels", "folded"}
    return [step.spec for step in program.parts[0].region.steps]


COORDINATES = ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"]
NEAREST = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize(("coordinates", "nearest"), list(itertools.product(COORDINATES, NEAREST)))
@pytest.mark.parametrize("scales", [(2, 2), (3, 1), (1.5, 0.7)])
def test_the_nearest_pixel(batch, coordinates, nearest, scales):
    def resize(net, x):
        factors = net.constant([1, 1, *scales], dtype=np.float32)
        return net.op("Resize", x, "", factors, coordinate_transformation_mode=coordinates, nearest_mode=nearest)

    assert_whole(between(resize, batch, is_open=scales == (2, 2)))


@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("scales", [(2, 2), (3, 1), (1.5, 0.7)])
def test_pixels_between_two(batch, coordinates, scales):
    def resize(net, x):
        factors = net.constant([1, 1, *scales], dtype=np.float32)
        return net.op("Resize", x, "", factors, mode="linear", coordinate_transformation_mode=coordinates)

    assert_whole(between(resize, batch, is_open=False))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("size", [(14, 10), (9, 4), (7, 5), (1, 1)])
def test_sizes_in_place_of_scales(mode, size):
    def resize(net, x):
        return net.op("Resize", x, "", "", int64(net, *size), mode=mode, axes=[2, 3])

    assert_whole(between(resize, is_open=False))


def pyramid(net, x, join, mode="nearest"):
    """What was halved takes the size of what it was made from."""
    small = net.conv(net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 6, 6, 3)
    ranges = ((small, 0, 2), (x, 2, 4))
    parts = [net.op("Slice", net.op("Shape", v), int64(net, a), int64(net, b)) for v, a, b in ranges]
    return join(net, x, net.op("Resize", small, "", "", net.op("Concat", *parts, axis=0), mode=mode))


JOINS = {
    "sum": (lambda net, a, b: net.op("Relu", net.op("Add", a, b)), 6),
    "product, small first": (lambda net, a, b: net.op("Mul", b, a), 6),
    "concatenation": (lambda net, a, b: net.op("Concat", b, a, axis=1), 12),
}


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("size", [(8, 6), (7, 9)])
@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize("is_open", [False, True])
def test_the_size_of_another_image(mode, size, name, is_open):
    net = SparseNet()
    x = net.conv(net.input("x", 3, 4, *size, declared=["n", 4, *(["h", "w"] if is_open else size)]), 4, 6, 3)
    join, width = JOINS[name]
    net.output(net.conv(pyramid(net, x, join, mode), width, 4, 3))
    assert_whole(net)


@pytest.mark.parametrize("batch", [1, 16])
def test_constants_that_are_resized_to_the_size_of_an_image(batch):
    """A table of positions, which torch reshapes to an image by nodes, for patches whose number it asks for."""
    net = SparseNet()
    x = net.conv(net.input("x", batch, 4, 8, 6, declared=["n", 4, 8, 6]), 4, 6, 3)
    side = net.op("Cast", net.op("Pow", net.constant(16, dtype=np.float32), net.constant(0.5)), to=7)
    target = net.op(
        "Concat", *[net.op("Unsqueeze", size, int64(net, 0)) for size in (side, side)], int64(net, 6), axis=0
    )
    table = net.op("Reshape", net.weight(16, 6), net.op("Concat", int64(net, 1), target, axis=0))
    table = net.op("Transpose", table, perm=[0, 3, 1, 2])
    sizes = [
        net.op("Slice", net.op("Shape", v), int64(net, a), int64(net, b)) for v, a, b in ((table, 0, 2), (x, 2, 4))
    ]
    table = net.op("Resize", table, "", "", net.op("Concat", *sizes, axis=0), mode="linear")
    net.output(net.conv(net.op("Relu", net.op("Add", x, table)), 6, 4, 3))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert [node.placement for node in program.placements if node.op == "Resize"] == ["kernels"]


@pytest.mark.parametrize("join", ["sum", "concatenation"])
def test_sizes_that_turn_out_different_are_an_error_of_the_input(join):
    net = SparseNet()
    x = net.conv(net.input("x", 3, 4, 8, 6, declared=["n", 4, "h", "w"]), 4, 6, 3)
    doubled = net.op("Resize", net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), "", net.constant(
        [1, 1, 2, 2], dtype=np.float32))  # fmt: skip
    function, width = JOINS[join]
    net.output(net.conv(function(net, x, doubled), width, 4, 3))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    with pytest.raises(UsageError, match=r"its operands are images of .*\[7, 6\]"):
        program.run({"x": np.ones((3, 4, 7, 6), np.float32)})


@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize("shape", [(1, 5), (7, 1), (1, 1)])
@pytest.mark.parametrize("small_first", [False, True])
def test_a_row_or_a_column_for_all_of_an_image(batch, shape, small_first):
    """As in coordinate attention (Hou et al., 2021)."""
    axes = [axis for axis, size in zip((2, 3), shape, strict=True) if size == 1]

    def operator(net, x):
        small = net.conv(x, 8, 8, 1)
        for axis in axes:
            kernel = [7, 1] if axis == 2 else [1, 5]
            small = net.op("AveragePool", small, kernel_shape=kernel)
        return net.op("Mul", *((small, x) if small_first else (x, small)))

    assert_whole(between(operator, batch, is_open=False))


def test_a_row_may_turn_out_to_be_for_all_of_an_image():
    net = SparseNet()
    x = net.conv(net.input("x", 3, 4, 2, 6, declared=["n", 4, "h", 6]), 4, 6, 3)
    small = net.op("MaxPool", x, kernel_shape=[2, 1], strides=[2, 1])
    net.output(net.conv(net.op("Add", net.op("Sigmoid", small), x), 6, 4, 3))
    assert_whole(net)


@pytest.mark.parametrize("opset", [9, 10])
def test_older_opsets(opset):
    def resize(net, x):
        op = "Upsample" if opset == 9 else "Resize"
        return net.op(op, x, net.constant([1, 1, 2, 3], dtype=np.float32), mode="nearest")

    assert_whole(between(resize, opset=opset))


@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "cubic", "antialias": 1},
        {"coordinate_transformation_mode": "tf_crop_and_resize"},
        {"antialias": 1, "mode": "linear"},
    ],
)
def test_what_is_not_resized_in_kernels_says_so(attributes):
    def resize(net, x):
        region = net.constant([0, 0, 0, 0, 1, 1, 1, 1], dtype=np.float32)
        return net.op("Resize", x, region, net.constant([1, 1, 2, 2], dtype=np.float32), name="op", **attributes)

    program = assert_same_as_onnxruntime((net := between(resize, is_open=False)).model(), net.feeds)
    assert places(program)["op"] == "onnxruntime"
    assert "no kernel resizes" in reasons(program)["op"]


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("opset", [11, 20])
def test_padding(mode, opset):
    def pad(net, x):
        padded = net.op("Pad", x, int64(net, 0, 0, 1, 2, 0, 0, 0, 3), mode=mode)
        return net.op("Tanh", padded)

    assert_whole(between(pad, opset=opset, is_open=mode == "edge"))


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(
    "pads",
    [
        (0, 0, -1, -1, 0, 0, 1, 1),  # as NASNet shifts images by a pixel
        (0, 0, 2, -1, 0, 0, -3, 0),
        (0, 0, 1, 2, 0, -3, 0, 1),
        (0, -1, 0, 1, 0, 0, -2, 0),
    ],
)
def test_images_are_cropped_and_padded(pads, is_open):
    def shift(net, x):
        padded = net.op("Pad", x, int64(net, *pads), net.constant(np.float32(0.5)))
        return net.op("AveragePool", padded, kernel_shape=[1, 1], strides=[2, 2])

    channels = 8 + pads[1] + pads[5]
    net = SparseNet()
    x = net.input("x", 17, 4, 7, 5, declared=["n", 4, *(["h", "w"] if is_open else [7, 5])])
    net.output(net.conv(shift(net, net.op("Relu", net.conv(x, 4, 8, 3))), channels, 4, 3))
    assert_whole(net)


@pytest.mark.parametrize(
    ("pads", "mode"), [((-1, 0, 0, 1, 0, 0, 0, 0), "constant"), ((0, 0, -1, 0, 0, 0, 1, 0), "edge")]
)
def test_other_crops_are_right(pads, mode):
    net = between(lambda net, x: net.op("Pad", x, int64(net, *pads), mode=mode))
    assert_same_as_onnxruntime(net.model(), net.feeds)


def test_zeros_join_the_convolution_behind_them():
    specs = assert_whole(between(lambda net, x: net.op("Pad", x, int64(net, 0, 0, 1, 2, 0, 0, 0, 3))))
    assert not any(isinstance(spec, PixelCopy) for spec in specs)
    assert specs[-1].geometry.pads == (2, 3, 1, 4)


def test_another_value_does_not_join_the_convolution_behind_it():
    def pad(net, x):
        return net.op("Pad", x, int64(net, 0, 0, 1, 2, 0, 0, 0, 3), net.constant(np.float32(0.5)))

    assert any(isinstance(spec, PixelCopy) for spec in assert_whole(between(pad)))


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("bounds", [(0, 2**63 - 1, 2), (1, 2**63 - 1, 2), (2, 2**31 - 1, 1)])
def test_every_second_pixel(is_open, bounds):
    def slices(net, x):
        start, stop, step = bounds
        axes = [int64(net, *values) for values in ((start, 0), (stop, 2**63 - 1), (2, 3), (step, 2))]
        return net.op("Slice", x, *axes)

    assert_whole(between(slices, is_open=is_open))


@pytest.mark.parametrize("batch", [1, 3, 16, 17])
@pytest.mark.parametrize("kernel", [(2, 2), (3, 1)])
@pytest.mark.parametrize("biased", [False, True])
def test_transposed_convolutions_that_tile_their_result(batch, kernel, biased):
    def transposed(net, x):
        weight = net.weight(8, 6, *kernel, fan_in=8)
        bias = [net.constant(np.linspace(-1, 1, 6, dtype=np.float32))] * biased
        y = net.op("ConvTranspose", x, weight, *bias, strides=list(kernel), kernel_shape=list(kernel))
        norm = [net.constant(np.linspace(0.5, 2, 6, dtype=np.float32)) for _ in range(4)]
        return net.op("Relu", net.op("BatchNormalization", y, *norm))

    specs = assert_whole(between(transposed, batch, width=6))
    assert sum(isinstance(spec, Conv) for spec in specs) == 3


@pytest.mark.parametrize("batch", [1, 17])
@pytest.mark.parametrize(("kernel", "attributes"), [
    ((4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    ((3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((3, 2), {"strides": [2, 1], "output_padding": [1, 0]}),
    ((5, 4), {"strides": [3, 2], "pads": [1, 2, 2, 1]}),
    ((3, 3), {"strides": [1, 1], "pads": [1, 1, 1, 1], "group": 2}),
    ((2, 2), {"strides": [2, 2], "group": 2}),
    ((1, 2), {"strides": [2, 3], "group": 8}),
    ((4, 4), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
], ids=str)  # fmt: skip
def test_transposed_convolutions_whose_windows_overlap(batch, kernel, attributes):
    def transposed(net, x):
        bias = net.constant(np.linspace(-1, 1, 8, dtype=np.float32))
        weight = net.weight(8, 8 // attributes.get("group", 1), *kernel, fan_in=8)
        return net.op("Relu", net.op("ConvTranspose", x, weight, bias, **attributes))

    assert_whole(between(transposed, batch, is_open=False))


def test_transposed_convolutions_of_open_sizes():
    def transposed(net, x):
        return net.op("ConvTranspose", x, net.weight(8, 8, 4, 4, fan_in=8), strides=[2, 2], pads=[1, 1, 1, 1])

    assert_whole(between(transposed))


@pytest.mark.parametrize(
    ("attributes", "is_open", "reason"),
    [({"dilations": [2, 2]}, False, "dilations"), ({"pads": [1, 1, 1, 1]}, True, "a part of the last block"),
     ({"output_shape": [14, 10]}, False, "follows from the size"), ({"pads": [3, 3, 3, 3]}, False, "cuts off more")],
)  # fmt: skip
def test_other_transposed_convolutions_are_left_out(attributes, is_open, reason):
    def transposed(net, x):
        weight = net.weight(8, 8, 3, 3, fan_in=8)
        return net.op("ConvTranspose", x, weight, strides=[2, 2], name="op", **attributes)

    program = assert_same_as_onnxruntime((net := between(transposed, is_open=is_open)).model(), net.feeds)
    assert reason in reasons(program)["op"]


def test_zeros_between_windows_are_no_pruned_weights():
    net = SparseNet()
    weight = net.constant(np.random.default_rng(0).standard_normal((4, 4, 4, 4)).astype(np.float32), "dense")
    x = net.conv(net.input("x", 1, 4, 6, 6), 4, 4)
    net.output(net.op("ConvTranspose", x, weight, strides=[2, 2], pads=[1, 1, 1, 1], name="op"))
    (region,) = [part.region for part in assert_same_as_onnxruntime(net.model(), net.feeds).parts]
    (spec,) = [step.spec for step in region.steps if isinstance(step.spec, Conv) and step.spec.weights.rows == 16]
    assert spec.weights.active_share == 1
    assert spec.weights.density == 16 / 36
    assert not pays(spec.weights)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("batch", [1, 17])
def test_depth_to_space(mode, batch):
    assert_whole(between(lambda net, x: net.op("DepthToSpace", x, blocksize=2, mode=mode), batch, width=2))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_the_size_of_an_image_of_other_channels(mode: str) -> None:
    """As decoders with skip connections resize: to the height and width of an earlier image of any channels."""
    net = SparseNet(17)
    x = net.input("x", 2, 3, 12, 16, declared=["n", 3, "h", "w"])
    early = net.op("Relu", net.conv(x, 3, 8, 3, strides=[2, 2]))
    late = net.op("Relu", net.conv(early, 8, 12, 3, strides=[2, 2]))
    start, middle, end = (net.constant([n], dtype=np.int64) for n in (0, 2, 4))
    counts = net.op("Slice", net.op("Shape", late), start, middle)
    sizes = net.op("Concat", counts, net.op("Slice", net.op("Shape", early), middle, end), axis=0)
    larger = net.op("Resize", late, "", "", sizes, mode=mode, coordinate_transformation_mode="half_pixel")
    net.output(net.conv(net.op("Concat", larger, early, axis=1), 20, 8), 2, 8, 6, 8)
    model = net.model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    program = CpuProgram(model, ONE_THREAD)
    rng = np.random.default_rng(0)
    for size in ((12, 16), (9, 31)):
        feeds = {"x": rng.standard_normal((2, 3, *size)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
    assert len(program.parts) == 1
