from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from kernel_reference import ACTIVATIONS, LAYOUTS, Shape, assert_close, conv, random_array, run
from onnx import TensorProto, helper

from sift_onnx.backends.cpu import _kernels

ISAS = _kernels.supported_isas()
SLOW_MACHINE = (HealthCheck.too_slow, HealthCheck.filter_too_much)
PAIRS = st.tuples(st.integers(1, 4), st.integers(1, 4))


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


def depthwise(weights: np.ndarray[Any, Any], *arguments: Any, **options: Any) -> _kernels.Depthwise:
    rows = _kernels.SparseWeights.from_dense(len(weights), weights[0].size, np.ascontiguousarray(weights))
    return _kernels.Depthwise(rows, *arguments, **options)


def run_onnxruntime(op: str, x: np.ndarray[Any, Any], attributes: dict[str, Any]) -> Any:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], **attributes)], "pool", [value], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("size", "pads"), [((3, 1), (3, 2, 3, 0)), ((1, 3), (2, 3, 0, 3)), ((4, 4), (0, 0, 3, 3)), ((2, 2), (3, 3, 0, 0))]
)
def test_windows_that_meet_nothing_but_padding(
    pool: _kernels.ThreadPool, isa: str, layout: str, size: tuple[int, int], pads: Shape
) -> None:
    rng = np.random.default_rng(1)
    x = random_array(rng, (17, 3, *size))
    weights = random_array(rng, (3, 1, 1, 1))
    bias = random_array(rng, (3,))
    for stride in ((1, 1), (3, 3), (4, 1)):
        geometry = {"stride": stride, "pads": pads}
        op = depthwise(weights, bias, kernel=(1, 1), layout=layout, isa=isa, **geometry)
        assert_close(run(pool, op, x), conv(x, weights, bias, groups=3, **geometry), 1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=20, deadline=None, suppress_health_check=SLOW_MACHINE)
@given(
    n=st.sampled_from((1, 3, 16, 18)),
    channels=st.integers(1, 5),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    kernel=PAIRS,
    stride=PAIRS,
    dilation=PAIRS,
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    activation=st.sampled_from(ACTIVATIONS),
    has_bias=st.booleans(),
)
def test_depthwise_convolution_agrees_with_numpy(
    pool: _kernels.ThreadPool,
    isa: str,
    layout: str,
    n: int,
    channels: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    pads: Shape,
    activation: tuple[str, float, float],
    has_bias: bool,
) -> None:
    assume(all(size[i] + pads[i] + pads[i + 2] > (kernel[i] - 1) * dilation[i] for i in (0, 1)))
    rng = np.random.default_rng(n)
    x = random_array(rng, (n, channels, *size))
    weights = random_array(rng, (channels, 1, *kernel))
    bias = random_array(rng, (channels,)) if has_bias else None
    geometry = {"stride": stride, "dilation": dilation, "pads": pads, "activation": activation}
    op = depthwise(weights, bias, kernel=kernel, layout=layout, isa=isa, **geometry)
    assert_close(run(pool, op, x), conv(x, weights, bias, groups=channels, **geometry), weights[0].size)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=20, deadline=None)
@given(
    size=st.tuples(st.integers(1, 23), st.integers(1, 37)),
    kernel=st.sampled_from(((3, 3), (5, 5), (7, 7), (1, 3))),
    dilation=st.sampled_from(((1, 1), (2, 1), (1, 3))),
    stride=st.sampled_from(((1, 1), (1, 1), (2, 2))),
    density=st.sampled_from((0.2, 1.0)),
    activation=st.sampled_from(ACTIVATIONS),
)
def test_windows_of_planes_that_keep_their_size(
    pool: _kernels.ThreadPool,
    isa: str,
    size: tuple[int, int],
    kernel: tuple[int, int],
    dilation: tuple[int, int],
    stride: tuple[int, int],
    density: float,
    activation: tuple[str, float, float],
) -> None:
    """Windows as networks have them: padded so that the outputs are as many as the pixels, or half as many."""
    rng = np.random.default_rng(size)
    x = random_array(rng, (2, 3, *size))
    weights = random_array(rng, (3, 1, *kernel)) * (rng.random((3, 1, *kernel)) < density)
    reach = [(kernel[i] - 1) * dilation[i] for i in (0, 1)]
    pads = (reach[0] // 2, reach[1] // 2, reach[0] - reach[0] // 2, reach[1] - reach[1] // 2)
    geometry = {"stride": stride, "dilation": dilation, "pads": pads}
    own = {"layout": "planes", "isa": isa}
    bias = random_array(rng, (3,))
    op = depthwise(weights, bias, kernel=kernel, activation=activation, **geometry, **own)
    assert_close(run(pool, op, x), conv(x, weights, bias, groups=3, activation=activation, **geometry), weights[0].size)
    if all(pads[i] < kernel[i % 2] for i in range(4)):
        attributes = {"kernel_shape": kernel, "strides": stride, "dilations": dilation, "pads": pads}
        pooled = run(pool, _kernels.MaxPool(kernel=kernel, **geometry, **own), x)
        assert_close(pooled, run_onnxruntime("MaxPool", x, attributes))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW_MACHINE)
@given(
    n=st.sampled_from((1, 3, 16, 18)),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    kernel=PAIRS,
    stride=PAIRS,
    dilation=PAIRS,
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    ceil_mode=st.booleans(),
    kind=st.sampled_from(("max", "average", "average with padding")),
)
def test_pooling_agrees_with_onnxruntime(
    pool: _kernels.ThreadPool,
    isa: str,
    layout: str,
    n: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    pads: Shape,
    ceil_mode: bool,
    kind: str,
) -> None:
    pads = tuple(min(pad, kernel[i % 2] - 1) for i, pad in enumerate(pads))
    assume(all(size[i] + pads[i] + pads[i + 2] > (kernel[i] - 1) * dilation[i] for i in (0, 1)))
    x = random_array(np.random.default_rng(n), (n, 3, *size))
    attributes = {"kernel_shape": kernel, "strides": stride, "dilations": dilation, "pads": pads}
    attributes["ceil_mode"] = int(ceil_mode)
    geometry = {"kernel": kernel, "stride": stride, "dilation": dilation, "pads": pads, "ceil_mode": ceil_mode}
    if kind == "max":
        op = _kernels.MaxPool(**geometry, layout=layout, isa=isa)
        expected = run_onnxruntime("MaxPool", x, attributes)
    else:
        include = kind == "average with padding"
        op = _kernels.AveragePool(**geometry, count_include_pad=include, layout=layout, isa=isa)
        expected = run_onnxruntime("AveragePool", x, attributes | {"count_include_pad": int(include)})
    assert_close(run(pool, op, x), expected)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=25, deadline=None)
@given(
    size=st.tuples(st.integers(1, 12), st.integers(1, 90)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 6)),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    ceil_mode=st.booleans(),
)
def test_maxima_of_every_other_column_are_those_of_onnxruntime(
    pool: _kernels.ThreadPool,
    isa: str,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: int,
    dilation: int,
    pads: Shape,
    ceil_mode: bool,
) -> None:
    """Bit by bit; all pixels are negative, so that a zero for what is outside of the image would win."""
    pads = tuple(min(pad, kernel[i % 2] - 1) for i, pad in enumerate(pads))
    reach = ((kernel[0] - 1) * dilation, kernel[1] - 1)
    assume(all(size[i] + pads[i] + pads[i + 2] > reach[i] for i in (0, 1)))
    x = -1 - np.abs(random_array(np.random.default_rng(size), (2, 3, *size)))
    own = {"stride": (stride, 2), "dilation": (dilation, 1), "pads": pads, "ceil_mode": ceil_mode}
    op = _kernels.MaxPool(kernel=kernel, **own, layout="planes", isa=isa)
    expected = run_onnxruntime("MaxPool", x, {"kernel_shape": kernel, "strides": (stride, 2), "pads": pads,
                                              "dilations": (dilation, 1), "ceil_mode": int(ceil_mode)})  # fmt: skip
    np.testing.assert_array_equal(run(pool, op, x), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 3, 7, 7), (17, 5, 1, 1), (2, 4, 13, 50)])
def test_global_averages_are_means_or_sums(pool: _kernels.ThreadPool, isa: str, layout: str, shape: Shape) -> None:
    x = random_array(np.random.default_rng(0), shape)
    op = _kernels.GlobalAveragePool(layout=layout, isa=isa)
    assert_close(run(pool, op, x), x.mean((2, 3), keepdims=True, dtype=np.float64))
    op = _kernels.GlobalAveragePool(sums=True, layout=layout, isa=isa)
    assert_close(run(pool, op, x), x.sum((2, 3), keepdims=True, dtype=np.float64))


def test_depthwise_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="one window of weights"):
        depthwise(np.zeros((1, 10), np.float32), kernel=(3, 3))
    with pytest.raises(ValueError, match="number of channels"):
        depthwise(np.zeros((1, 9), np.float32), kernel=(3, 3)).output_shape((1, 2, 5, 5))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("width", [5, 16, 33, 118])
def test_depthwise_weights_that_are_zero(
    pool: _kernels.ThreadPool, isa: str, layout: str, stride: int, width: int
) -> None:
    rng = np.random.default_rng(width)
    x = random_array(rng, (2, 7, 9, width))
    weights = random_array(rng, (7, 1, 3, 3)) * (rng.random((7, 1, 3, 3)) < 0.5).astype(np.float32)
    weights[3] = 0
    bias = random_array(rng, (7,))
    op = depthwise(weights, bias, kernel=(3, 3), stride=(stride, stride), pads=(1, 1, 1, 1), layout=layout, isa=isa)
    expected = conv(x, weights, bias, stride=(stride, stride), pads=(1, 1, 1, 1), groups=7)
    assert_close(run(pool, op, x), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("stride", [1, 2])
def test_planes_too_many_for_a_cache(pool: _kernels.ThreadPool, isa: str, stride: int) -> None:
    rng = np.random.default_rng(4)
    x = random_array(rng, (16, 8, 260, 260))
    assert x.nbytes > 32 << 20
    weights = random_array(rng, (8, 9))
    images16, planes = (
        run(
            pool,
            depthwise(weights, kernel=(3, 3), stride=(stride, stride), pads=(1, 1, 1, 1), layout=layout, isa=isa),
            x,
        )
        for layout in ("images16", "planes")
    )
    assert_close(images16, planes, 9)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("channels", "size"), [(40, 64), (2800, 7)], ids=["planes are cut", "planes are copied"])
def test_large_outputs_that_go_past_the_caches(pool: _kernels.ThreadPool, isa: str, channels: int, size: int) -> None:
    """8 MiB and more of sixteen images in lanes."""
    rng = np.random.default_rng(7)
    x = random_array(rng, (16, channels, size, size))
    weights = random_array(rng, (channels, 1, 3, 3))
    window = {"kernel": (3, 3), "pads": (1, 1, 1, 1)}
    op = depthwise(weights, isa=isa, **window)
    assert_close(run(pool, op, x), conv(x, weights, groups=channels, pads=(1, 1, 1, 1)), 9)
    attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    np.testing.assert_array_equal(
        run(pool, _kernels.MaxPool(isa=isa, **window), x), run_onnxruntime("MaxPool", x, attributes)
    )
