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
from sift_onnx.errors import UsageError

Array = np.ndarray[Any, Any]
ISAS = _kernels.supported_isas()
# Kernel and stride of both axes, and the outputs of a tile.
CONVOLUTIONS = (((3, 3), (1, 1)), ((7, 7), (2, 2)), ((4, 4), (1, 1)), ((5, 6), (2, 2)))


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


def packed(weights: Array) -> _kernels.SparseWeights:
    return _kernels.SparseWeights.from_dense(len(weights), weights[0].size, weights)


def operators(
    weights: Array, bias: Array | None, of_conv: dict[str, Any], of_pool: dict[str, Any], **common: Any
) -> tuple[_kernels.Op, _kernels.Op, _kernels.Op]:
    """Both in one, and one after the other."""
    activation = of_conv.pop("activation", ("none", 0.0, 0.0))
    sparse = packed(weights)
    window = {
        "window": of_pool["kernel"],
        "window_stride": of_pool["stride"],
        "window_pads": of_pool["pads"],
        "ceil_mode": of_pool.get("ceil_mode", False),
    }
    together = _kernels.PooledWinograd(sparse, bias, activation=activation, **of_conv, **window, **common)
    first = _kernels.Winograd(sparse, bias, activation=activation, **of_conv, **common)
    return together, first, _kernels.MaxPool(**of_pool, **common)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=25, deadline=None, suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much))
@given(
    convolution=st.sampled_from(CONVOLUTIONS),
    images=st.sampled_from((1, 3, 16, 33)),
    channels=st.integers(1, 4),
    rows=st.integers(1, 20),
    size=st.tuples(st.integers(1, 60), st.integers(1, 40)),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    window=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    window_stride=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    window_pads=st.tuples(*[st.integers(0, 8)] * 4),
    ceil_mode=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS),
    has_bias=st.booleans(),
    threads=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_does_what_the_two_do_one_after_the_other(
    isa: str,
    layout: str,
    convolution: tuple[tuple[int, int], tuple[int, int]],
    images: int,
    channels: int,
    rows: int,
    size: tuple[int, int],
    pads: tuple[int, int, int, int],
    window: tuple[int, int],
    window_stride: tuple[int, int],
    window_pads: tuple[int, int, int, int],
    ceil_mode: bool,
    activation: tuple[str, float, float],
    has_bias: bool,
    threads: int,
    seed: int,
) -> None:
    """Bit by bit, on any number of threads: strips of rows share maxima, and none may come too early."""
    kernel, stride = convolution
    assume(all(size[a] + pads[a] + pads[a + 2] >= kernel[a] for a in (0, 1)))
    assume(all(max(window_pads[a], window_pads[a + 2]) < window[a] for a in (0, 1)))
    rng = np.random.default_rng(seed)
    x = random_array(rng, (images, channels, *size))
    bias = random_array(rng, (rows,)) if has_bias else None
    together, first, second = operators(
        random_array(rng, (rows, channels, *kernel)),
        bias,
        {"kernel": kernel, "stride": stride, "pads": pads, "activation": activation},
        {"kernel": window, "stride": window_stride, "pads": window_pads, "ceil_mode": ceil_mode},
        layout=layout,
        isa=isa,
    )
    assume(min(second.output_shape(first.output_shape(x.shape))) > 0)
    with_threads = _kernels.ThreadPool(threads)
    expected = run(with_threads, second, run(with_threads, first, x))
    np.testing.assert_array_equal(run(with_threads, together, x), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("window", "window_stride", "window_pads", "ceil_mode"),
    [
        ((3, 3), (2, 2), (1, 1, 1, 1), False),
        ((2, 2), (2, 2), (0, 0, 0, 0), True),
        ((9, 2), (1, 2), (8, 1, 8, 0), False),  # a window needs rows of four bands
        ((2, 3), (7, 1), (0, 0, 1, 0), True),  # whole bands between two windows
    ],
)
@pytest.mark.parametrize("height", [80, 200])
def test_bands_of_planes(
    isa: str,
    height: int,
    window: tuple[int, int],
    window_stride: tuple[int, int],
    window_pads: tuple[int, int, int, int],
    ceil_mode: bool,
) -> None:
    """Sixteen tiles are a row of them: each of the 14 or 34 rows is a band by itself.

    One image is left for both threads, which take half of its pooled rows each where it has 34.
    """
    rng = np.random.default_rng(0)
    x = random_array(rng, (3, 2, height, 96))
    together, first, second = operators(
        random_array(rng, (20, 2, 7, 7)),
        random_array(rng, (20,)),
        {"kernel": (7, 7), "stride": (2, 2), "pads": (3, 3, 3, 3), "activation": ACTIVATIONS[-1]},
        {"kernel": window, "stride": window_stride, "pads": window_pads, "ceil_mode": ceil_mode},
        layout="planes",
        isa=isa,
    )
    pool = _kernels.ThreadPool(2)
    np.testing.assert_array_equal(run(pool, together, x), run(pool, second, run(pool, first, x)))


@pytest.mark.parametrize(
    ("window", "problem"),
    [
        ({"window": (3, 3), "window_pads": (3, 0, 0, 0)}, "not larger than its padding"),
        ({"window": (3, 2), "window_pads": (0, 0, 0, 2)}, "not larger than its padding"),
        ({"window": (0, 2)}, "must be positive"),
        ({"window": (2, 2), "window_pads": (-1, 0, 0, 0)}, "padding not negative"),
    ],
)
def test_other_windows_are_refused(window: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        _kernels.PooledWinograd(packed(np.ones((16, 27), np.float32)), kernel=(3, 3), **window)


def test_it_takes_no_second_operand(pool: _kernels.ThreadPool) -> None:
    op = _kernels.PooledWinograd(packed(np.ones((16, 27), np.float32)), kernel=(3, 3), window=(2, 2), layout="planes")
    x = np.ones((1, 3, 9, 9), np.float32)
    out = np.empty(op.output_shape(x.shape), np.float32)
    with pytest.raises(ValueError, match="takes no such operand"):
        op.run(pool, x.shape, x, out, out.copy())


def image_model(path: Path, rng: np.random.Generator, pool: dict[str, Any], leaves: bool) -> tuple[Array, Array]:
    """A dense 7x7 convolution, ReLU, max pooling and a sparse 3x3 convolution; returns both weights."""
    first = random_array(rng, (32, 3, 7, 7))
    second = (random_array(rng, (64, 32, 3, 3)) * (rng.random((64, 32, 3, 3)) < 0.1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="first", strides=[2, 2], pads=[3, 3, 3, 3]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], name="pool", **pool),
        helper.make_node("Conv", ["c", "w1"], ["y"], name="second", pads=[1, 1, 1, 1]),
    ]
    constants = [numpy_helper.from_array(first, "w0"), numpy_helper.from_array(second, "w1")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", None, None, None])]
    if leaves:
        outputs.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, ["n", None, None, None]))
    graph = helper.make_graph(nodes, "g", [x], outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return first, second


POOL = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}


def test_an_image_model_begins_with_it(tmp_path: Path) -> None:
    """Profile and operations are those of the convolution, and its result is not stored."""
    rng = np.random.default_rng(5)
    path = tmp_path / "model.onnx"
    first, second = image_model(path, rng, POOL, leaves=False)
    program = get_backend("cpu").compile(path, CompileOptions(2))
    session = sift_onnx.InferenceSession(str(path))
    for batch, layout in ((2, "planes"), (16, "images16")):
        x = random_array(rng, (batch, 3, 64, 64))
        nodes = {node.name: node for node in program.profile({"x": x}).nodes}
        assert "pool" not in nodes
        profiled = nodes["first"]
        assert profiled.kernel == f"conv winograd {layout} tile 3x3, pooled"
        assert profiled.gflops is not None
        assert profiled.gflops * profiled.ms * 1e6 == pytest.approx(2.0 * first.size * 32 * 32 * batch)
        convolved = np.maximum(conv(x, first, stride=(2, 2), pads=(3, 3, 3, 3)), 0)
        padded = np.pad(convolved, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
        expected = conv(windows.max((-1, -2)), second, pads=(1, 1, 1, 1))
        for _ in range(2):  # in the second run weights have been given up
            (y,) = session.run(None, {"x": x})
            assert_close(y, expected, 32 * 9)


def test_the_window_that_does_not_fit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    image_model(path, np.random.default_rng(7), {"kernel_shape": [5, 5]}, leaves=False)
    session = sift_onnx.InferenceSession(str(path))
    with pytest.raises(UsageError, match=r"the pooling behind node 'first'.* \[2, 32, 4, 4\]; feed a larger"):
        session.run(None, {"x": np.zeros((2, 3, 8, 8), np.float32)})


@pytest.mark.parametrize(
    ("pool", "leaves"),
    [(POOL, True), ({**POOL, "dilations": [2, 2]}, False)],
    ids=["its operand leaves the model", "dilated"],
)
def test_pooling_that_stays_alone(tmp_path: Path, pool: dict[str, Any], leaves: bool) -> None:
    rng = np.random.default_rng(6)
    path = tmp_path / "model.onnx"
    image_model(path, rng, pool, leaves)
    x = random_array(rng, (16, 3, 64, 64))
    profile = get_backend("cpu").compile(path, CompileOptions(2)).profile({"x": x})
    kernels = {node.name: node.kernel for node in profile.nodes}
    assert kernels["first"] == "conv winograd images16 tile 3x3"
    assert kernels["pool"] == "maxpool images16"
