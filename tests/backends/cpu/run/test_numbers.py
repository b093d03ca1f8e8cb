"""Arithmetic with a number, of activations whose channels only a run counts, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, left_to_onnxruntime, places

from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram

pytestmark = pytest.mark.usefixtures("every_region_pays")

WIDTH = 6


def scores(net: SparseNet) -> tuple[str, str, str]:
    """The model's input, queries, and keys with tokens as channels."""
    x = net.input("x", 2, 7, 5, declared=["n", "t", 5])
    queries, keys = (net.dense(x, 5, WIDTH) for _ in range(2))
    return x, queries, str(net.op("Transpose", keys, perm=[0, 2, 1]))


def assert_same_in_turn(net: SparseNet) -> CpuProgram:
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    rng = np.random.default_rng(0)
    for n, t in ((1, 1), (2, 7), (3, 17), (16, 5)):
        feeds = {"x": rng.standard_normal((n, t, 5)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
    return program


def assert_in_kernels(net: SparseNet) -> CpuProgram:
    program = assert_same_in_turn(net)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1
    return program


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_a_number_beside_open_channels(op: str, shape: tuple[int, ...]) -> None:
    net = SparseNet(opset=18)
    _, queries, keys = scores(net)
    net.output(net.op("MatMul", queries, net.op(op, keys, net.constant(np.full(shape, 2.5, np.float32)))))
    assert_in_kernels(net)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_a_number_before_open_channels(op: str) -> None:
    net = SparseNet(opset=18)
    _, queries, keys = scores(net)
    net.output(net.op("MatMul", queries, net.op(op, net.constant(-0.75), net.op("Exp", keys))))
    assert_in_kernels(net)


def test_the_negative_of_open_channels() -> None:
    net = SparseNet(opset=18)
    _, queries, keys = scores(net)
    net.output(net.op("MatMul", queries, net.op("Neg", keys)))
    assert_in_kernels(net)


def test_open_channels_are_taken_off_one_position() -> None:
    net = SparseNet(opset=18)
    _, queries, keys = scores(net)
    mean = net.op("ReduceMean", keys, net.constant([1], dtype=np.int64))
    net.output(net.op("MatMul", queries, net.op("Sub", mean, keys)))
    assert_in_kernels(net)


def test_a_root_of_a_size_divides() -> None:
    """DeBERTa's scale: of the depth of a head, and of the kinds of scores that are added."""
    net = SparseNet(opset=18)
    _, queries, keys = scores(net)
    depth = net.op("Slice", net.op("Shape", queries), net.constant([-1]), net.constant([2**62]), net.constant([0]))
    depth = net.op("Cast", net.op("Squeeze", depth, net.constant([0])), to=1)
    scale = net.op("Cast", net.op("Sqrt", net.op("Mul", depth, net.constant(3.0))), to=1)
    net.output(net.op("MatMul", queries, net.op("Div", keys, scale)))
    assert_in_kernels(net)


@pytest.mark.parametrize("number", [0.0, 1e-42])
def test_what_has_no_finite_reciprocal_divides(number: float) -> None:
    net = SparseNet(opset=18)
    _, _, keys = scores(net)
    net.output(net.op("Div", net.op("Relu", keys), net.constant(np.float32(number)), name="scaled"))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    assert places(program)["scaled"] == "kernels"
    (found,), (wanted,) = (each.run(net.feeds).values() for each in (program, OnnxRuntimeProgram(model, ONE_THREAD)))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_a_vector_multiplies_columns(rank: int, computed: bool) -> None:
    """As detectors take the mean of a distribution over bins; the vector may be made of constants."""
    net = SparseNet(opset=18)
    x = net.input("x", 2, 7, 5, declared=["n", "t", 5])
    y = net.op("Softmax", net.dense(x, 5, WIDTH), axis=-1)
    bins = net.constant(np.linspace(-1, 2, WIDTH))
    if computed:
        bins = net.op("Concat", *net.op("Split", net.op("Atan", bins), outputs=2, num_outputs=2), axis=0)
    shape = {2: [-1, WIDTH], 3: [0, 0, WIDTH], 4: [0, -1, 1, WIDTH]}[rank]
    mean = net.op("MatMul", net.op("Reshape", y, net.constant(shape)), bins, name="mean")
    sizes = net.op("Slice", net.op("Shape", x), net.constant([0]), net.constant([2]))
    back = net.op("Reshape", mean, net.op("Concat", sizes, net.constant([1]), axis=0))
    net.output(net.dense(back, 1, 4))
    program = assert_same_in_turn(net)
    assert places(program)["mean"] == "kernels"
    assert len(program.parts) == 1


def test_a_vector_of_another_size_or_type_is_left_to_onnxruntime() -> None:
    net = SparseNet(opset=18)
    x = net.dense(net.input("x", 2, 7, 5, declared=["n", 7, 5]), 5, WIDTH)
    vector = net.input("vector", WIDTH)
    net.output(net.op("Relu", net.op("MatMul", x, vector, name="mean")))
    program = CpuProgram(net.model(), ONE_THREAD)
    assert_same_as_onnxruntime(net.model(), net.feeds, program)
    assert places(program)["mean"] == "onnxruntime"


@pytest.mark.parametrize("is_image", [False, True])
def test_signs(is_image: bool) -> None:
    """Soft thresholds are those of differences times signs; NaN has none, nor have zeros."""
    net = SparseNet(opset=18)
    if is_image:
        y = net.conv(net.input("x", 2, 4, 5, 6, declared=["n", 4, 5, 6]), 4, WIDTH, 3)
    else:
        y = net.dense(net.input("x", 2, 7, 4, declared=["n", "t", 4]), 4, WIDTH)
    less = net.op("Relu", net.op("Sub", net.op("Abs", y), net.constant(np.float32(0.2))))
    soft = net.op("Mul", net.op("Sign", y, name="sign"), less)
    net.output(net.conv(soft, WIDTH, 5, 3) if is_image else net.dense(soft, WIDTH, 5))
    program = CpuProgram(net.model(), ONE_THREAD)
    for n in (1, 3, 17):
        shape = (n, *net.feeds["x"].shape[1:])
        feeds = {"x": np.random.default_rng(n).standard_normal(shape).astype(np.float32)}
        assert_same_as_onnxruntime(net.model(), feeds, program)
    assert places(program)["sign"] == "kernels"
    assert len(program.parts) == 1


def test_signs_of_numbers_that_are_nearly_none() -> None:
    net = SparseNet(opset=18)
    y = net.op("Mul", net.input("x", 1, 2, 8, declared=["n", 2, 8]), net.op("Relu", net.input("y", 1, 2, 8)))
    net.output(net.op("Sign", y, name="sign"))
    net.output(net.dense(y, 8, 4))
    x = np.float32([np.nan, -0.0, 0, 3, -np.inf, np.inf, -1e-38, 1e-37]).reshape(1, 1, 8).repeat(2, axis=1)
    feeds = {"x": x, "y": np.ones_like(x)}
    program = CpuProgram(net.model(), ONE_THREAD)
    found, wanted = (each.run(feeds) for each in (program, OnnxRuntimeProgram(net.model(), ONE_THREAD)))
    for ours, theirs in zip(found.values(), wanted.values(), strict=True):
        if ours.shape == x.shape:
            np.testing.assert_array_equal(ours, theirs)
    assert places(program)["sign"] == "kernels"
