"""CumSum of activations in regions, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sparse_nets import SparseNet, assert_same_as_onnxruntime, left_to_onnxruntime

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.run.program import CpuProgram

pytestmark = pytest.mark.usefixtures("every_region_pays")

SIZES = ((1, 1), (2, 7), (3, 17), (16, 5), (8, 300), (19, 2))


def tokens(net: SparseNet) -> str:
    return str(net.dense(net.input("x", 2, 4, 5, declared=["n", "t", 5]), 5, 6, name="before"))


def feeds_of(batch: int, length: int) -> dict[str, Any]:
    rng = np.random.default_rng(batch + 31 * length)
    return {"x": rng.standard_normal((batch, length, 5)).astype(np.float32)}


def assert_in_one_region(net: SparseNet, threads: int = 1) -> None:
    model = net.model()
    program = CpuProgram(model, CompileOptions(threads=threads, deterministic=True))
    for batch, length in SIZES:
        assert_same_as_onnxruntime(model, feeds_of(batch, length), program)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_sums_along_any_axis(axis: int, exclusive: int, reverse: int, threads: int) -> None:
    net = SparseNet(opset=18)
    sums = net.op("CumSum", tokens(net), net.constant(axis, dtype=np.int64), exclusive=exclusive, reverse=reverse)
    net.output(net.dense(net.op("Tanh", sums), 6, 4, name="after"))
    assert_in_one_region(net, threads)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_sums_of_images(axis: int) -> None:
    net = SparseNet(opset=18)
    x = net.input("x", 2, 3, 5, 7, declared=["n", 3, "h", "w"])
    y = net.op("Relu", net.op("Conv", x, net.weight(6, 3, 3, 3), pads=[1] * 4))
    sums = net.op("CumSum", y, net.constant([axis], dtype=np.int64))
    net.output(net.op("Conv", net.op("Tanh", sums), net.weight(4, 6, 3, 3), pads=[1] * 4))
    model = net.model()
    program = CpuProgram(model, CompileOptions(threads=2, deterministic=True))
    for shape in ((1, 3, 5, 7), (17, 3, 4, 4), (2, 3, 33, 9)):
        feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
    assert len(program.parts) == 1


def test_a_matrix_is_summed_along_its_rows_and_columns() -> None:
    for axis in (0, 1):
        net = SparseNet(opset=18)
        x = net.dense(net.input("x", 2, 5, declared=["n", 5]), 5, 6)
        net.output(net.dense(net.op("CumSum", x, net.constant(axis, dtype=np.int64)), 6, 4))
        model = net.model()
        program = CpuProgram(model, CompileOptions(threads=1, deterministic=True))
        for batch in (1, 3, 40):
            feeds = {"x": np.random.default_rng(0).standard_normal((batch, 5)).astype(np.float32)}
            assert_same_as_onnxruntime(model, feeds, program)
        assert len(program.parts) == 1


def test_infinite_values_reach_the_sums_behind_them_alone() -> None:
    net = SparseNet(opset=18)
    x = net.op("Div", tokens(net), net.input("y", 2, 4, 6, declared=["n", "t", 6]))
    sums = net.op("CumSum", x, net.constant(1, dtype=np.int64))
    net.output(net.op("Where", net.op("Less", net.op("Abs", sums), net.constant(1e30)), sums, net.constant(7.0)))
    model = net.model()
    program = CpuProgram(model, CompileOptions(threads=1, deterministic=True))
    feeds = feeds_of(2, 9) | {"y": np.random.default_rng(1).choice(np.float32([0, 1, 2]), (2, 9, 6), p=[0.1, 0.4, 0.5])}
    assert_same_as_onnxruntime(model, feeds, program)


def test_an_axis_that_a_run_computes_is_left_to_onnxruntime() -> None:
    net = SparseNet(opset=18)
    axis = net.input("axis", values=np.array(1, np.int64))
    net.output(net.dense(net.op("CumSum", tokens(net), axis, name="sums"), 6, 4))
    program = CpuProgram(net.model(), CompileOptions(threads=1, deterministic=True))
    assert "axis" in left_to_onnxruntime(program)["sums"]
    for place in (0, 1, 2):
        assert_same_as_onnxruntime(net.model(), feeds_of(2, 5) | {"axis": np.array(place, np.int64)}, program)
