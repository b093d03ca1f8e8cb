"""Images and tokens that are padded, cropped and rolled by numbers that follow from sizes, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, left_to_onnxruntime

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.errors import UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")

END = 2**63 - 1
# Of batch, height and width; some images are whole windows already.
SIZES = [(1, 8, 12), (3, 9, 7), (2, 11, 16), (17, 5, 6), (1, 4, 4)]


def integers(net: SparseNet, *values: int) -> str:
    return str(net.constant(values, dtype=np.int64))


def number(net: SparseNet, value: int) -> str:
    return str(net.constant(value, dtype=np.int64))


def images(net: SparseNet) -> str:
    return str(net.input("x", 2, 4, 9, 7, declared=["n", 4, "h", "w"]))


def size_of(net: SparseNet, x: str, axis: int) -> str:
    return str(net.op("Gather", net.op("Shape", x), integers(net, axis)))


def missing(net: SparseNet, size: str, part: int) -> str:
    """What is missing to the next multiple of ``part``, as exporters of torch write it."""
    left = net.op("Mod", size, integers(net, part))
    return str(net.op("Mod", net.op("Sub", integers(net, part), left), integers(net, part)))


def padded(net: SparseNet, x: str, rows: str, columns: str, **attributes: Any) -> str:
    zeros = integers(net, 0, 0, 0, 0)
    zero = integers(net, 0)
    pads = net.op("Concat", zeros, zero, zero, rows, columns, axis=0)
    return str(net.op("Pad", x, pads, **attributes))


def assert_one_region(net: SparseNet, sizes: list[tuple[int, int, int]], threads: int = 1) -> CpuProgram:
    model = net.model()
    program = CpuProgram(model, CompileOptions(threads=threads))
    for n, h, w in [*sizes, sizes[0]]:
        feeds = {"x": np.random.default_rng(h).standard_normal((n, 4, h, w)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1
    return program


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("threads", [1, 2])
def test_images_are_padded_to_whole_windows_and_cropped(mode: str, threads: int) -> None:
    net = SparseNet(opset=18)
    x = images(net)
    height, width = size_of(net, x, 2), size_of(net, x, 3)
    y = padded(net, x, missing(net, height, 4), missing(net, width, 4), mode=mode)
    y = net.op("Conv", y, net.weight(6, 4, 4, 4), strides=[4, 4])
    y = net.op("Relu", y)
    y = net.conv(y, 6, 32, 1)
    y = net.op("DepthToSpace", y, blocksize=4, mode="CRD")
    ends = net.op("Concat", height, width, axis=0)
    y = net.op("Slice", y, integers(net, 0, 0), ends, integers(net, 2, 3))
    net.output(net.conv(net.op("Relu", y), 2, 3, 3))
    assert_one_region(net, SIZES, threads)


def test_an_image_that_is_too_small_to_be_reflected_is_an_error() -> None:
    net = SparseNet(opset=18)
    x = images(net)
    y = net.op("Pad", x, integers(net, 0, 0, 3, 3, 0, 0, 3, 3), mode="reflect")
    net.output(net.conv(y, 4, 6, 3))
    program = assert_one_region(net, [(1, 5, 4), (3, 4, 9)])
    with pytest.raises(UsageError, match="its operands are images of"):
        program.run({"x": np.zeros((1, 4, 3, 8), np.float32)})


@pytest.mark.parametrize("by", [1, 2, 3])
@pytest.mark.parametrize("is_computed", [False, True])
def test_windows_are_rolled(by: int, is_computed: bool) -> None:
    """torch.roll is two slices; its newer exporter computes where they meet as a remainder."""
    net = SparseNet(opset=18)
    x = images(net)
    y = padded(net, x, missing(net, size_of(net, x, 2), 4), missing(net, size_of(net, x, 3), 4))
    y = net.conv(y, 4, 6, 3)
    rows = net.op("Transpose", y, perm=[0, 2, 3, 1])
    for axis in (1, 2):
        size = size_of(net, rows, axis)
        place = net.op("Mod", integers(net, by), size) if is_computed else integers(net, by)
        end = size if is_computed else integers(net, END)
        behind = net.op("Slice", rows, place, end, integers(net, axis))
        before = net.op("Slice", rows, integers(net, 0), place, integers(net, axis))
        rows = net.op("Concat", behind, before, axis=axis)
    net.output(net.conv(net.op("Add", net.op("Transpose", rows, perm=[0, 3, 1, 2]), y), 6, 5, 3))
    assert_one_region(net, SIZES)


@pytest.mark.parametrize("parts", [2, 3])
def test_a_batch_is_cut_where_its_inputs_say(parts: int) -> None:
    """As prompts and images that were joined along the batch."""
    net = SparseNet(opset=18)
    x = images(net)
    batch = size_of(net, x, 0)
    y = net.conv(net.op("Concat", *[net.op("Relu", net.conv(x, 4, 6, 3))] * parts, axis=0), 6, 6, 3)
    pieces = []
    for part in range(parts):
        start, end = (net.op("Mul", batch, integers(net, part + more)) for more in (0, 1))
        pieces.append(net.op("Slice", y, start, end, integers(net, 0)))
    total = pieces[0]
    for piece in pieces[1:]:
        total = net.op("Add", total, net.op("Mul", piece, net.constant(np.float32(0.5))))
    net.output(net.conv(total, 6, 5, 3))
    program = CpuProgram(net.model(), ONE_THREAD)
    for n, h, w in SIZES:
        feeds = {"x": np.random.default_rng(h).standard_normal((n, 4, h, w)).astype(np.float32)}
        assert_same_as_onnxruntime(net.model(), feeds, program)
    assert len(program.parts) <= 2


@pytest.mark.parametrize(("start", "end"), [("h-w", "w"), ("h", "-1"), ("w-h", "h"), ("-h", "w"), ("min", "max")])
def test_bounds_that_are_counted_from_either_end_in_a_run(start: str, end: str) -> None:
    """Whether a bound is negative, and how much is left, may be known in the run alone."""
    net = SparseNet(opset=18)
    x = images(net)
    h, w = size_of(net, x, 2), size_of(net, x, 3)
    bounds = {
        "h": h, "w": w, "-1": integers(net, -1), "h-w": net.op("Sub", h, w), "w-h": net.op("Sub", w, h),
        "-h": net.op("Neg", h), "min": net.op("Sub", net.op("Min", h, w), integers(net, 1)), "max": net.op("Max", h, w),
    }  # fmt: skip
    y = net.conv(x, 4, 6, 1)
    rows = net.op("Reshape", y, net.op("Concat", integers(net, 0, 6, -1), axis=0))
    doubled = net.op("Concat", rows, rows, axis=2)
    taken = net.op("Slice", doubled, bounds[start], bounds[end], integers(net, 2))
    net.output(net.dense(net.op("Transpose", taken, perm=[0, 2, 1]), 6, 5))
    program = CpuProgram(net.model(), ONE_THREAD)
    for n, height, width in [(1, 4, 7), (3, 7, 4), (2, 5, 5), (2, 3, 9), (1, 9, 2)]:
        feeds = {"x": np.random.default_rng(height).standard_normal((n, 4, height, width)).astype(np.float32)}
        assert_same_as_onnxruntime(net.model(), feeds, program)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_the_last_window_of_a_pooling_may_be_the_only_one(op: str, size: int) -> None:
    net = SparseNet(opset=19)
    y = net.conv(images(net), 4, 6, 1)
    y = net.op(op, y, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    net.output(net.conv(y, 6, 5, 1))
    assert_one_region(net, [(1, size, 4), (3, 4, size), (17, size, size)])


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric"])
def test_maps_are_resized_to_the_size_of_the_input(mode: str, coordinates: str) -> None:
    """As segmentation does, and a mean of all pixels beside other branches."""
    net = SparseNet(opset=18)
    x = images(net)
    y = net.op("Relu", net.op("Conv", x, net.weight(6, 4, 3, 3), strides=[2, 2], pads=[1] * 4))
    pooled = net.conv(net.op("GlobalAveragePool", y), 6, 6, 1)
    whole = net.op("Slice", net.op("Shape", y), integers(net, 2), integers(net, 4), integers(net, 0))
    front = net.op("Slice", net.op("Shape", y), integers(net, 0), integers(net, 2), integers(net, 0))
    spread = net.op("Resize", pooled, "", "", net.op("Concat", front, whole, axis=0), mode=mode)
    y = net.conv(net.op("Concat", y, spread, axis=1), 12, 5, 1)
    front = net.op("Concat", size_of(net, x, 0), integers(net, 5), axis=0)
    target = net.op("Concat", front, size_of(net, x, 2), size_of(net, x, 3), axis=0)
    y = net.op("Resize", y, "", "", target, mode=mode, coordinate_transformation_mode=coordinates)
    net.output(net.conv(y, 5, 4, 1))
    assert_one_region(net, SIZES, threads=2)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scale", [0.5, 0.25])
def test_images_of_open_sizes_are_made_smaller(mode: str, scale: float) -> None:
    net = SparseNet(opset=18)
    y = net.conv(images(net), 4, 6, 3)
    y = net.op("Resize", y, "", net.constant(np.float32([1, 1, scale, scale])), mode=mode)
    net.output(net.conv(y, 6, 5, 3))
    assert_one_region(net, SIZES)


def test_signals_are_resized_to_the_length_of_another() -> None:
    net = SparseNet(opset=18)
    x = net.input("x", 2, 4, 21, declared=["n", 4, "t"])
    y = net.op("Relu", net.op("Conv", x, net.weight(6, 4, 3), pads=[1, 1]))
    short = net.op("Relu", net.op("Conv", y, net.weight(6, 6, 3), pads=[1, 1], strides=[2]))
    target = net.op(
        "Concat", net.op("Concat", size_of(net, x, 0), integers(net, 6), axis=0), size_of(net, y, 2), axis=0
    )
    longer = net.op("Resize", short, "", "", target, mode="linear")
    net.output(net.op("Conv", net.op("Concat", longer, y, axis=1), net.weight(5, 12, 3), pads=[1, 1]))
    program = CpuProgram(net.model(), ONE_THREAD)
    for n, t in ((1, 21), (3, 8), (17, 5), (2, 2)):
        feeds = {"x": np.random.default_rng(t).standard_normal((n, 4, t)).astype(np.float32)}
        assert_same_as_onnxruntime(net.model(), feeds, program)
    assert len(program.parts) == 1


def test_sizes_of_a_region_behind_onnxruntime_are_expressions_of_the_inputs() -> None:
    """Its operand has as many positions as a window of the waveform, and is reshaped to them."""
    net = SparseNet(opset=18)
    x = net.input("x", 2, 1, 41, declared=["n", 1, "s"])
    y = net.op("Conv", x, net.weight(8, 1, 7), strides=[3])
    angles = net.op("Acos", net.op("Tanh", y), name="angles")
    rows = net.op("Reshape", net.dense(net.op("Transpose", angles, perm=[0, 2, 1]), 8, 8), integers(net, -1, 8))
    target = net.op("Concat", integers(net, -1), size_of(net, y, 2), integers(net, 8), axis=0)
    back = net.op("Reshape", net.op("Tanh", rows), target)
    net.output(net.dense(net.op("Softmax", back, axis=1), 8, 5))
    program = CpuProgram(net.model(), ONE_THREAD)
    for n, s in ((2, 41), (1, 7), (3, 60), (17, 12)):
        feeds = {"x": np.random.default_rng(s).standard_normal((n, 1, s)).astype(np.float32)}
        assert_same_as_onnxruntime(net.model(), feeds, program)
    assert set(left_to_onnxruntime(program)) == {"angles"}
    assert len(program.parts) == 3
