"""Standard operators that are made of others run in regions, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, left_to_onnxruntime

from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.lowering.composed_operators import with_elementary_operators
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.model import Model

pytestmark = pytest.mark.usefixtures("every_region_pays")

WIDTH = 6
SIZES = ((1, 5), (3, 4), (2, 1), (8, 17), (16, 2))
IMAGES = ((1, 4, 6), (3, 2, 2), (17, 6, 4), (2, 12, 8))
ACTIVATIONS: list[tuple[str, dict[str, float], int]] = [
    ("Softsign", {}, 13),
    ("Celu", {}, 13),
    ("Celu", {"alpha": 2.5}, 13),
    ("ThresholdedRelu", {}, 13),
    ("ThresholdedRelu", {"alpha": -0.2}, 13),
    ("Shrink", {}, 13),
    ("Shrink", {"lambd": 0.1, "bias": 0.3}, 13),
    ("Swish", {}, 24),
    ("Swish", {"alpha": -1.5}, 24),
]
REDUCTIONS = ["ReduceL1", "ReduceLogSum", "ReduceLogSumExp"]


def tokens(net: SparseNet, name: str = "x", declared: Any = ("n", "t", 5)) -> str:
    return str(net.dense(net.input(name, 2, 4, 5, declared=[*declared]), 5, WIDTH, name=f"{name} before"))


def feeds_of(net: SparseNet, batch: int, length: int) -> dict[str, Any]:
    rng = np.random.default_rng(batch + 31 * length)
    return {name: rng.standard_normal((batch, length, 5)).astype(np.float32) for name in net.feeds}


def assert_in_one_region(net: SparseNet) -> None:
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for batch, length in SIZES:
        assert_same_as_onnxruntime(model, feeds_of(net, batch, length), program)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1


def reduced(net: SparseNet, op: str, x: str, axes: list[int], keepdims: int) -> str:
    if net.opset < 18:
        return str(net.op(op, x, axes=axes, keepdims=keepdims))
    return str(net.op(op, x, net.constant(axes, dtype=np.int64), keepdims=keepdims))


@pytest.mark.parametrize(("op", "attributes", "opset"), ACTIVATIONS)
def test_activations(op: str, attributes: dict[str, float], opset: int) -> None:
    net = SparseNet(opset=opset)
    made = net.op(op, tokens(net), **attributes)
    net.output(made)
    net.output(net.dense(made, WIDTH, 4, name="after"))
    assert_in_one_region(net)


@pytest.mark.parametrize("op", ["Sum", "Mean"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_sums_of_several(op: str, count: int) -> None:
    net = SparseNet(opset=13)
    x = tokens(net)
    others = [net.op("Tanh", x), net.op("ReduceMax", x, axes=[1]), net.constant(np.linspace(-1, 1, WIDTH))]
    net.output(net.dense(net.op(op, *[x, *others][:count]), WIDTH, 4, name="after"))
    assert_in_one_region(net)


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize(("axes", "keepdims"), [([2], 1), ([-1], 0), ([1], 1), ([1], 0)])
def test_reductions(op: str, axes: list[int], keepdims: int, opset: int) -> None:
    net = SparseNet(opset=opset)
    x = net.op("Add", net.op("Abs", tokens(net)), net.constant(0.25))
    made = reduced(net, op, x, axes, keepdims)
    net.output(made)
    net.output(net.dense(net.op("Mul", x, made) if keepdims else x, WIDTH, 4, name="after"))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for batch, length in SIZES:
        assert_same_as_onnxruntime(model, feeds_of(net, batch, length), program)
    assert left_to_onnxruntime(program) == {}


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 300.0, -300.0])
@pytest.mark.parametrize("everywhere", [False, True])
def test_logarithms_of_sums_of_extreme_exponentials(value: float, everywhere: bool) -> None:
    net = SparseNet(opset=18)
    y = net.input("y", 2, 3, WIDTH, declared=["n", "t", WIDTH])
    made = reduced(net, "ReduceLogSumExp", net.op("Add", tokens(net), y), [2], 1)
    net.output(made)
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    feeds = feeds_of(net, 2, 3) | {"y": np.zeros((2, 3, WIDTH), np.float32)}
    feeds["y"][0, 1, :: 1 if everywhere else 2] = value
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    np.testing.assert_allclose(program.run(feeds)[made], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("declared", [["n", 3, "h", "w"], ["n", 3, 8, 6]])
def test_neighbouring_channels(size: int, declared: list[Any]) -> None:
    net = SparseNet(opset=13)
    x = net.input("x", 2, 3, 8, 6, declared=declared)
    y = net.op("Relu", net.op("Conv", x, net.weight(9, 3, 3, 3), pads=[1] * 4))
    y = net.op("LRN", y, size=size, alpha=0.5, beta=0.75, bias=1.5)
    net.output(net.op("Conv", y, net.weight(4, 9, 3, 3), pads=[1] * 4))
    assert_images_in_one_region(net, declared)


@pytest.mark.parametrize("block", [1, 2])
@pytest.mark.parametrize("declared", [["n", 3, "h", "w"], ["n", 3, 8, 6]])
def test_blocks_become_channels(block: int, declared: list[Any]) -> None:
    net = SparseNet(opset=13)
    x = net.input("x", 2, 3, 8, 6, declared=declared)
    y = net.op("SpaceToDepth", net.op("Conv", x, net.weight(5, 3, 3, 3), pads=[1] * 4), blocksize=block)
    net.output(net.op("Conv", y, net.weight(4, 5 * block**2, 3, 3), pads=[1] * 4))
    assert_images_in_one_region(net, declared)


def test_blocks_of_one_channel_after_the_other_are_left_to_onnxruntime() -> None:
    """Since opset 28, the order of channels is an attribute."""
    net = SparseNet(opset=28)
    x = net.input("x", 2, 3, 8, 6)
    net.output(net.op("SpaceToDepth", net.conv(x, 3, 5, 3), blocksize=2, mode="CRD"))
    view = with_elementary_operators(GraphView(Model.load(net.model())))
    assert [node.op_type for node in view.nodes] == ["Conv", "SpaceToDepth"]


@pytest.mark.parametrize("sizes", [([6, 8], [2, 4]), ([4, 6], [1, 1]), ([6, 6], [3, 6])])
def test_blocks_that_do_not_overlap_are_put_into_an_image(sizes: tuple[list[int], list[int]]) -> None:
    """As torch's dynamo exporter writes the end of a MobileViT block."""
    image, block = sizes
    size, count = int(np.prod(block)), int(np.prod(image) // np.prod(block))
    net = SparseNet(opset=18)
    x = net.dense(net.input("x", 2, count, 5, declared=["n", count, 5]), 5, 3 * size)
    x = net.op("Transpose", x, perm=[0, 2, 1])
    y = net.op("Col2Im", x, net.constant(image), net.constant(block), strides=block)
    net.output(net.conv(y, 3, 4))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for n in (1, 3, 17):
        feeds = {"x": np.random.default_rng(n).standard_normal((n, count, 5)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1


@pytest.mark.parametrize("attributes", [{"strides": [1, 1]}, {"strides": [2, 2], "pads": [1, 1, 1, 1]}, {}])
def test_blocks_that_overlap_are_left_to_onnxruntime(attributes: dict[str, list[int]]) -> None:
    image = [5, 5] if "pads" not in attributes else [4, 4]
    count = 16 if "pads" not in attributes else 9
    net = SparseNet(opset=18)
    x = net.op("Relu", net.input("x", 2, 12, count, declared=["n", 12, count]))
    net.output(net.op("Col2Im", x, net.constant(image), net.constant([2, 2]), **attributes))
    view = with_elementary_operators(GraphView(Model.load(net.model())))
    assert [node.op_type for node in view.nodes] == ["Relu", "Col2Im"]


@pytest.mark.parametrize("equation", ["nhwpqc->nchpwq", "nhwpqc -> nhw", "...pqc->...cp", "hwpncq", "nhwpqc->cwn"])
def test_einsum_of_one_operand(equation: str) -> None:
    """Patches become pixels, as diffusion transformers write it."""
    net = SparseNet(opset=17)
    x = net.dense(net.input("x", 2, 6, 5, declared=["n", 6, 5]), 5, 8, name="before")
    patches = net.op("Reshape", x, net.constant([-1, 2, 3, 2, 2, 2], dtype=np.int64))
    made = net.op("Einsum", patches, equation=equation)
    net.output(made)
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for batch in (1, 3, 17):
        feeds = {"x": np.random.default_rng(batch).standard_normal((batch, 6, 5)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
    assert left_to_onnxruntime(program) == {}


def test_a_diagonal_is_left_to_onnxruntime() -> None:
    net = SparseNet(opset=17)
    x = net.dense(net.input("x", 2, 6, 5, declared=["n", 6, 5]), 5, 6, name="before")
    net.output(net.op("Einsum", x, equation="nii->ni", name="diagonal"))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert "diagonal" in left_to_onnxruntime(program)


def assert_images_in_one_region(net: SparseNet, declared: list[Any]) -> None:
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for batch, height, width in IMAGES:
        height, width = (height, width) if isinstance(declared[2], str) else (8, 6)
        feeds = {"x": np.random.default_rng(batch).standard_normal((batch, 3, height, width)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1


def test_other_types_and_axes_of_a_run_stay_as_they_are() -> None:
    net = SparseNet(opset=18)
    x = net.input("x", 2, 3, declared=["n", 3])
    axes = net.input("axes", values=np.array([1], np.int64))
    net.output(net.op("ReduceL1", x, axes))
    net.output(net.op("ReduceLogSumExp", x))
    net.output(net.op("Celu", x, alpha=-0.5))
    net.output(net.op("ReduceL1", net.op("Cast", x, to=onnx.TensorProto.INT32)))
    graph = GraphView(Model.load(net.model()))
    assert with_elementary_operators(graph) is graph


@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize(
    ("target", "attributes"),
    [
        ([7, 9], {}),
        ([13, 4], {"cubic_coeff_a": -0.5}),
        ([7, 16], {"exclude_outside": 1}),
        ([1, 9], {}),
        ([2.0, 0.4], {}),
        ([1.3, 3.0], {"exclude_outside": 1, "cubic_coeff_a": -0.6}),
    ],
)
def test_cubic_resize_is_two_products(coordinates: str, target: list[float], attributes: dict[str, Any]) -> None:
    net = SparseNet(opset=17)
    x = net.conv(net.input("x", 2, 3, 7, 9, declared=["n", 3, 7, 9]), 3, 4)
    if isinstance(target[0], float):
        sizes = ["", net.constant([1.0, 1.0, *target])]
    else:
        batch = net.op("Slice", net.op("Shape", x), net.constant([0]), net.constant([2]))
        sizes = ["", "", net.op("Concat", batch, net.constant([int(size) for size in target]), axis=0)]
    y = net.op(
        "Resize", x, *sizes, mode="cubic", coordinate_transformation_mode=coordinates, name="resize", **attributes
    )
    net.output(net.conv(net.op("Relu", y), 4, 3))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for n in (1, 3, 17):
        feeds = {"x": np.random.default_rng(n).standard_normal((n, 3, 7, 9)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1


@pytest.mark.parametrize(
    "change", [{"antialias": 1}, {"keep_aspect_ratio_policy": "not_larger"}, {"axes": [2, 3]}, {"declared": "h"}]
)
def test_other_cubic_resizes_are_left_to_onnxruntime(change: dict[str, Any]) -> None:
    """Antialiasing weighs more pixels; the others are rare."""
    declared = ["n", 3, change.pop("declared", 7), 9]
    net = SparseNet(opset=18)
    x = net.op("Relu", net.input("x", 2, 3, 7, 9, declared=declared))
    target = net.constant([5, 6] if "axes" in change else [2, 3, 5, 6], dtype=np.int64)
    net.output(net.op("Resize", x, "", "", target, mode="cubic", **change))
    view = with_elementary_operators(GraphView(Model.load(net.model())))
    assert [node.op_type for node in view.nodes] == ["Relu", "Resize"]
