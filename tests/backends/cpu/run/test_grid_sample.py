"""GridSample in regions, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, left_to_onnxruntime, reasons

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.run.program import CpuProgram

BATCHES = (1, 3, 17)
Floats = npt.NDArray[np.float32]


def sampled(net: SparseNet, mode: str, padding: str, aligned: int, height: int = 5) -> str:
    """Images behind a convolution, at positions that another one makes; a few of them lie outside."""
    images = net.conv(net.input("x", 2, 4, height, 7, declared=["n", 4, "h", 7]), 4, 6, 3)
    points = net.conv(net.input("y", 2, 3, 4, 9, declared=["n", 3, 4, "w"]), 3, 2, name="points")
    grid = net.op("Transpose", net.op("Mul", points, net.constant(0.7)), perm=[0, 2, 3, 1])
    found = net.op("GridSample", images, grid, name="sampled", mode=mode, padding_mode=padding, align_corners=aligned)
    return str(found)


def feeds_at(batch: int, height: int = 5, width: int = 9) -> dict[str, Floats]:
    rng = np.random.default_rng(batch)
    shapes = {"x": (batch, 4, height, 7), "y": (batch, 3, 4, width)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.usefixtures("every_region_pays")
@pytest.mark.parametrize("opset", [16, 20])
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_between_layers(mode: str, padding: str, aligned: int, opset: int) -> None:
    net = SparseNet(opset=opset)
    found = sampled(net, "bilinear" if mode == "linear" and opset < 20 else mode, padding, aligned)
    net.output(net.conv(net.op("Relu", found), 6, 4, 3))
    model = net.model()
    for threads in (1, 2):
        program = CpuProgram(model, CompileOptions(threads=threads, deterministic=True))
        for batch, height, width in ((1, 5, 9), (3, 1, 1), (17, 8, 33)):
            assert_same_as_onnxruntime(model, feeds_at(batch, height, width), program)
        assert left_to_onnxruntime(program) == {}
        assert len(program.parts) == 1


@pytest.mark.usefixtures("every_region_pays")
def test_heads_sample_values_of_several_levels() -> None:
    """Deformable attention: heads are images, and points of a level are pixels."""
    net = SparseNet()
    heads, depth, queries, points, tokens = 2, 4, 5, 3, 12
    integers = lambda *values: net.constant(values, dtype=np.int64)  # noqa: E731
    x = net.dense(net.input("x", 2, tokens, 8, declared=["n", tokens, 8]), 8, 8)
    values = net.op("Transpose", net.op("Reshape", x, integers(0, tokens, heads, depth)), perm=[0, 2, 3, 1])
    values = net.op("Reshape", values, integers(-1, depth, 3, 4))
    q = net.input("q", 2, queries, 8, declared=["n", queries, 8])
    offsets = net.op("Tanh", net.dense(q, 8, heads * points * 2))
    grid = net.op("Reshape", offsets, integers(0, queries, heads, points, 2))
    grid = net.op("Reshape", net.op("Transpose", grid, perm=[0, 2, 1, 3, 4]), integers(-1, queries, points, 2))
    found = net.op("GridSample", values, grid, align_corners=0)
    weights = net.op("Reshape", net.dense(q, 8, heads * points), integers(0, queries, heads, points))
    weights = net.op("Softmax", net.op("Transpose", weights, perm=[0, 2, 1, 3]), axis=-1)
    weights = net.op("Reshape", weights, integers(-1, 1, queries, points))
    found = net.op("ReduceSum", net.op("Mul", found, weights), integers(-1), keepdims=0)
    found = net.op("Reshape", found, integers(-1, heads * depth, queries))
    net.output(net.dense(net.op("Transpose", found, perm=[0, 2, 1]), 8, 6))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for batch in BATCHES:
        rng = np.random.default_rng(batch)
        feeds = {
            "x": rng.standard_normal((batch, tokens, 8)).astype(np.float32),
            "q": rng.standard_normal((batch, queries, 8)).astype(np.float32),
        }
        assert_same_as_onnxruntime(model, feeds, program)
    assert len(program.parts) == 1


@pytest.mark.usefixtures("every_region_pays")
@pytest.mark.parametrize(("attributes", "reason"), [
    ({"mode": "cubic"}, "no kernel samples with cubic and zeros"),
    ({"padding_mode": "reflection"}, "no kernel samples with linear and reflection"),
])  # fmt: skip
def test_what_has_no_kernel_is_left_to_onnxruntime(attributes: dict[str, Any], reason: str) -> None:
    net = SparseNet()
    settings = {"mode": "linear", "padding": "zeros", "aligned": 0}
    settings.update({"mode": attributes.get("mode", "linear"), "padding": attributes.get("padding_mode", "zeros")})
    net.output(net.conv(sampled(net, **settings), 6, 4, 3))
    program = CpuProgram(net.model(), ONE_THREAD)
    assert_same_as_onnxruntime(net.model(), feeds_at(3), program)
    assert reasons(program)["sampled"] == reason


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(1, 6)] * 4), images=st.integers(1, 3), channels=st.integers(1, 4),
    mode=st.sampled_from(["linear", "nearest"]), clamps=st.booleans(), aligned=st.booleans(),
    reach=st.sampled_from([0.9, 1.0, 2.5, 1e6]), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_kernel_at_any_sizes(
    sizes: tuple[int, int, int, int], images: int, channels: int, mode: str, clamps: bool, aligned: bool, reach: float,
    seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    height, width, rows, columns = sizes
    x = rng.standard_normal((images, channels, height, width)).astype(np.float32)
    grid = (reach * rng.uniform(-1, 1, (images, rows, columns, 2))).astype(np.float32)
    grid[0, 0, 0] = rng.choice([-1, 1, 0], 2)
    found = kernel_of(x, grid, is_nearest=mode == "nearest", clamps=clamps, aligns_corners=aligned)
    wanted = onnxruntime_of(x, grid, mode, "border" if clamps else "zeros", int(aligned))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5)


def test_positions_that_are_no_numbers_read_nothing_else() -> None:
    x = np.ones((1, 2, 3, 3), np.float32)
    grid = np.array([np.nan, np.inf, -np.inf, 1e38], np.float32)
    grid = np.stack([grid, np.zeros(4, np.float32)], -1).reshape(1, 1, 4, 2)
    for clamps in (False, True):
        near = kernel_of(x, grid, is_nearest=True, clamps=clamps)
        assert np.isin(near, (0.0, 1.0)).all()
        between = kernel_of(x, grid, clamps=clamps)
        assert np.isnan(between[..., 0]).all()


def kernel_of(x: Floats, grid: Floats, **options: bool) -> Floats:
    out = np.full((*x.shape[:2], *grid.shape[1:3]), 9, np.float32)
    op = _kernels.GridSample(*grid.shape[1:3], **options)
    op.run(_kernels.ThreadPool(2), x.shape, x.reshape(-1), out.reshape(-1), grid.reshape(-1))
    return out


def onnxruntime_of(x: Floats, grid: Floats, mode: str, padding: str, aligned: int) -> Floats:
    node = onnx.helper.make_node(
        "GridSample", ["x", "grid"], ["y"], mode=mode, padding_mode=padding, align_corners=aligned
    )
    infos = [onnx.helper.make_tensor_value_info(name, 1, array.shape) for name, array in (("x", x), ("grid", grid))]
    made = onnx.helper.make_tensor_value_info("y", 1, None)
    graph = onnx.helper.make_graph([node], "g", infos, [made])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x, "grid": grid})
    return np.asarray(found, np.float32)
