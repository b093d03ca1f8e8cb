from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from kernel_reference import ACTIVATIONS, LAYOUTS, assert_close, conv, random_array, run
from onnx import TensorProto, helper, numpy_helper

import sift_onnx
from sift_onnx.backends.base import CompileOptions, get_backend
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.run.region_program import RegionProgram

Array = np.ndarray[Any, Any]
ISAS = _kernels.supported_isas()
# Kernel and stride of an axis whose phases have three taps, or four.
AXES = {3: ((3, 1), (5, 2), (6, 2), (7, 3)), 4: ((4, 1), (7, 2), (8, 2), (10, 3))}


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


def assert_near(actual: Array, expected: Array, x: Array, weights: Array, **geometry: Any) -> None:
    """Up to some units of rounding of all that was added up: transforms cancel what products of pixels do not hold."""
    added = conv(np.abs(x), np.abs(weights), **geometry)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6 * (1 + float(added.max())))


def packed(weights: Array) -> _kernels.SparseWeights:
    return _kernels.SparseWeights.from_dense(len(weights), weights[0].size, weights)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=20, deadline=None, suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much))
@given(
    taps=st.sampled_from((3, 4)),
    axes=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    images=st.sampled_from((1, 2, 5, 16, 17)),
    channels=st.integers(1, 16),
    rows=st.integers(1, 40),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    pads=st.tuples(*[st.integers(0, 4)] * 4),
    activation=st.sampled_from(ACTIVATIONS),
    has_bias=st.booleans(),
    has_residual=st.booleans(),
    seed=st.integers(0, 99),
)
def test_agrees_with_numpy(
    pool: _kernels.ThreadPool,
    isa: str,
    layout: str,
    taps: int,
    axes: tuple[int, int],
    images: int,
    channels: int,
    rows: int,
    size: tuple[int, int],
    pads: tuple[int, int, int, int],
    activation: tuple[str, float, float],
    has_bias: bool,
    has_residual: bool,
    seed: int,
) -> None:
    kernel, stride = (tuple(AXES[taps][axis][part] for axis in axes) for part in (0, 1))
    assume(all(size[a] + pads[a] + pads[a + 2] >= kernel[a] for a in (0, 1)))
    assume(channels * stride[0] * stride[1] <= 16)
    rng = np.random.default_rng(seed)
    x = random_array(rng, (images, channels, *size))
    weights = random_array(rng, (rows, channels, *kernel))
    bias = random_array(rng, (rows,)) if has_bias else None
    expected = conv(x, weights, stride=stride, pads=pads)
    residual = random_array(rng, expected.shape) if has_residual else None
    expected = conv(x, weights, bias, stride=stride, pads=pads, activation=activation, residual=residual)
    op = _kernels.Winograd(
        packed(weights), bias, kernel=kernel, stride=stride, pads=pads, activation=activation, layout=layout, isa=isa
    )
    assert op.tile == 7 - taps
    assert_near(run(pool, op, x, residual), expected, x, weights, stride=stride, pads=pads)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_number_of_threads_computes_the_same(layout: str) -> None:
    rng = np.random.default_rng(3)
    x = random_array(rng, (3, 3, 41, 37))
    op = _kernels.Winograd(
        packed(random_array(rng, (30, 3, 7, 7))), kernel=(7, 7), stride=(2, 2), pads=(3, 3, 3, 3), layout=layout
    )
    alone, together = (run(_kernels.ThreadPool(threads), op, x) for threads in (1, 3))
    np.testing.assert_array_equal(alone, together)


def test_large_outputs_that_go_past_the_caches(pool: _kernels.ThreadPool) -> None:
    """8 MiB and more of sixteen images in lanes."""
    rng = np.random.default_rng(4)
    x = random_array(rng, (16, 1, 130, 130))
    weights, bias = random_array(rng, (32, 1, 3, 3)), random_array(rng, (32,))
    op = _kernels.Winograd(packed(weights), bias, kernel=(3, 3), pads=(1, 1, 1, 1))
    assert_near(run(pool, op, x), conv(x, weights, bias, pads=(1, 1, 1, 1)), x, weights, pads=(1, 1, 1, 1))


def test_what_is_infinite_reaches_the_outputs_that_read_it(pool: _kernels.ThreadPool) -> None:
    """And may reach others of its tile, but leaves none of its own as if it were not there."""
    x = np.ones((1, 1, 20, 20), np.float32)
    x[0, 0, 9, 9] = np.inf
    op = _kernels.Winograd(packed(np.ones((16, 1, 3, 3), np.float32)), kernel=(3, 3), layout="planes")
    y = run(pool, op, x)
    assert not np.isfinite(y[:, :, 7:10, 7:10]).any()
    assert np.isfinite(y[:, :, 12:, 12:]).all()


@pytest.mark.parametrize(
    ("columns", "geometry"),
    [
        (17 * 9, {"kernel": (3, 3)}),  # too many channels
        (5 * 49, {"kernel": (7, 7), "stride": (2, 2)}),  # too many phases
        (12, {"kernel": (3, 4)}),
        (4, {"kernel": (2, 2)}),
        (25, {"kernel": (5, 5)}),
    ],
)
def test_other_convolutions_are_refused(columns: int, geometry: dict[str, tuple[int, int]]) -> None:
    others = {"stride": (1, 1), "dilation": (1, 1), "groups": 1, **geometry}
    assert not _kernels.Winograd.suits(columns, **others)
    with pytest.raises(ValueError, match="winograd: not a convolution of few channels"):
        _kernels.Winograd(packed(np.ones((16, columns), np.float32)), **geometry)


def test_dilation_groups_and_operands_are_checked(pool: _kernels.ThreadPool) -> None:
    suiting = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "groups": 1}
    assert _kernels.Winograd.suits(27, **suiting)
    assert not _kernels.Winograd.suits(27, **{**suiting, "dilation": (2, 1)})
    assert not _kernels.Winograd.suits(27, **{**suiting, "groups": 2})
    with pytest.raises(ValueError, match="one bias per output channel"):
        _kernels.Winograd(packed(np.ones((16, 27), np.float32)), np.ones(3, np.float32), kernel=(3, 3))
    op = _kernels.Winograd(packed(np.ones((16, 27), np.float32)), kernel=(3, 3), layout="planes")
    with pytest.raises(ValueError, match="number of channels"):
        run(pool, op, np.ones((1, 4, 9, 9), np.float32))


def image_model(path: Path, rng: np.random.Generator) -> tuple[Array, Array]:
    """A dense 7x7 convolution, ReLU, and a sparse 3x3 convolution; returns both weights."""
    first = random_array(rng, (32, 3, 7, 7))
    second = (random_array(rng, (64, 32, 3, 3)) * (rng.random((64, 32, 3, 3)) < 0.1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="first", strides=[2, 2], pads=[3, 3, 3, 3]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["y"], name="second", pads=[1, 1, 1, 1]),
    ]
    constants = [numpy_helper.from_array(first, "w0"), numpy_helper.from_array(second, "w1")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 64, 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", None, None, None])
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return first, second


def test_the_first_layer_of_an_image_model_takes_it(tmp_path: Path) -> None:
    """At batches of both layouts, one after the other: the second is made when the first has run."""
    rng = np.random.default_rng(5)
    path = tmp_path / "model.onnx"
    first, second = image_model(path, rng)
    program = get_backend("cpu").compile(path, CompileOptions(2))
    session = sift_onnx.InferenceSession(str(path))
    for batch, layout in ((2, "planes"), (16, "images16")):
        x = random_array(rng, (batch, 3, 64, 64))
        (kernel,) = [node.kernel for node in program.profile({"x": x}).nodes if node.name == "first"]
        assert kernel == f"conv winograd {layout} tile 3x3"
        expected = conv(np.maximum(conv(x, first, stride=(2, 2), pads=(3, 3, 3, 3)), 0), second, pads=(1, 1, 1, 1))
        for _ in range(2):  # in the second run weights have been given up
            (y,) = session.run(None, {"x": x})
            assert_close(y, expected, 32 * 9)


def test_weights_are_looked_after_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be given up is given up behind the first run, and later runs need not ask again."""
    path = tmp_path / "model.onnx"
    image_model(path, np.random.default_rng(6))
    calls = []
    release = RegionProgram._release
    monkeypatch.setattr(RegionProgram, "_release", lambda program: (calls.append(1), release(program)))
    session = sift_onnx.InferenceSession(str(path))
    for _ in range(3):
        session.run(None, {"x": np.zeros((1, 3, 64, 64), np.float32)})
    assert len(calls) == 1
