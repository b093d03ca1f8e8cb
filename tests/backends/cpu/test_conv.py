from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from kernel_reference import ACTIVATIONS, LAYOUTS, assert_close, conv, random_array, random_sparse, run, to_layout

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.isa import generates_code

ISAS = _kernels.supported_isas()
SLOW_MACHINE = (HealthCheck.too_slow, HealthCheck.filter_too_much)
GENERATES = generates_code(_kernels.detected_isa())
ALGORITHMS = ("single", "pair", "dense", *(["generated"] if GENERATES else []))
DENSITIES = (0.0, -1.0, 0.03, 0.1, 0.4, 0.9, 1.0)


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


@pytest.fixture(scope="module")
def pools() -> list[_kernels.ThreadPool]:
    return [_kernels.ThreadPool(threads) for threads in (1, 2, 3, 16)]


@dataclass(frozen=True)
class Case:
    n: int
    channels: int  # of a group
    rows: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pads: tuple[int, int, int, int]
    groups: int
    density: float
    seed: int


def pairs(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


cases = st.builds(
    Case,
    n=st.sampled_from((1, 2, 5, 15, 16, 17, 33)),
    channels=st.integers(1, 40),
    rows=st.one_of(st.integers(1, 24), st.integers(25, 90)),
    size=pairs(1, 20),
    kernel=st.one_of(st.just((1, 1)), st.just((3, 3)), pairs(1, 5)),
    stride=st.one_of(st.just((1, 1)), pairs(1, 3)),
    dilation=st.one_of(st.just((1, 1)), pairs(1, 4)),
    pads=st.one_of(st.just((0, 0, 0, 0)), st.tuples(*[st.integers(0, 3)] * 4)),
    groups=st.sampled_from((1, 1, 2, 3)),
    density=st.sampled_from(DENSITIES),
    seed=st.integers(0, 99),
)


def output_exists(case: Case) -> bool:
    return all(
        case.size[axis] + case.pads[axis] + case.pads[axis + 2] > (case.kernel[axis] - 1) * case.dilation[axis]
        for axis in (0, 1)
    )


def operands(case: Case, rng: np.random.Generator) -> tuple[Any, Any, dict[str, Any]]:
    """Input, weights, and what says how they meet."""
    x = random_array(rng, (case.n, case.groups * case.channels, *case.size))
    weights = random_sparse(rng, (case.groups * case.rows, case.channels, *case.kernel), case.density)
    return x, weights, {"stride": case.stride, "dilation": case.dilation, "pads": case.pads, "groups": case.groups}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=60, deadline=None, suppress_health_check=SLOW_MACHINE)
@given(
    case=cases,
    algorithm=st.sampled_from(("auto", *ALGORITHMS)),
    activation=st.sampled_from(ACTIVATIONS),
    has_bias=st.booleans(),
    has_residual=st.booleans(),
)
def test_every_convolution_agrees_with_numpy(
    pool: _kernels.ThreadPool,
    isa: str,
    layout: str,
    case: Case,
    algorithm: str,
    activation: tuple[str, float, float],
    has_bias: bool,
    has_residual: bool,
) -> None:
    assume(output_exists(case))
    assume(algorithm != "generated" or generates_code(isa))
    rng = np.random.default_rng(case.seed)
    x, weights, geometry = operands(case, rng)
    bias = random_array(rng, (len(weights),)) if has_bias else None
    expected = conv(x, weights, **geometry)
    residual = random_array(rng, expected.shape) if has_residual else None
    op = _kernels.Conv(
        _kernels.SparseWeights.from_dense(len(weights), weights[0].size, weights),
        bias,
        kernel=case.kernel,
        **geometry,
        activation=activation,
        layout=layout,
        algorithm=algorithm,
        isa=isa,
    )
    expected = conv(x, weights, bias, **geometry, activation=activation, residual=residual)
    assert_close(run(pool, op, x, residual), expected, weights[0].size)


@lru_cache(maxsize=1)
def large_case(images: int, channels: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Input, weights, residual and expected output; the output is too large for a cache."""
    rng = np.random.default_rng(3)
    x = random_array(rng, (images, 3, size, size))
    weights = random_sparse(rng, (channels, 3, 1, 1), 0.5)
    residual = random_array(rng, (images, channels, size, size))
    assert residual.nbytes > 32 << 20
    return x, weights, residual, conv(x, weights, activation=("clip", 0.0, 1.0), residual=residual)


# The first two vary fastest: what is computed by numpy is the same for them.
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize(
    ("layout", "images", "channels", "size"),
    [
        ("images16", 16, 34, 128),
        ("images16", 16, 60, 97),
        ("planes", 1, 34, 512),
        ("planes", 1, 34, 513),  # rows that are not aligned
        ("planes", 16, 34, 128),  # tiles of two images, whose blocks are not evenly spaced
    ],
)
def test_outputs_too_large_for_a_cache(
    pool: _kernels.ThreadPool, isa: str, layout: str, images: int, channels: int, size: int, align: bool
) -> None:
    x, weights, residual, expected = large_case(images, channels, size)
    op = _kernels.Conv(
        _kernels.SparseWeights.from_dense(channels, 3, weights), activation=("clip", 0.0, 1.0), layout=layout, isa=isa
    )
    assert_close(run(pool, op, x, residual, align), expected, 3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "pads", "size"),
    [
        (64, 1, 1, (0, 0, 0, 0), (45, 37)),
        (40, 3, 1, (1, 1, 1, 1), (45, 40)),
        (40, 3, 2, (0, 1, 2, 0), (45, 40)),
        (40, 1, 2, (0, 0, 0, 0), (45, 41)),
        (700, 1, 1, (0, 0, 0, 0), (12, 11)),  # several slices
    ],
)
def test_input_that_comes_in_runs(
    pool: _kernels.ThreadPool,
    isa: str,
    channels: int,
    kernel: int,
    stride: int,
    pads: tuple[int, int, int, int],
    size: tuple[int, int],
) -> None:
    """Of images in lanes larger than the second-level cache, tiles run row by row and prefetch for several."""
    rng = np.random.default_rng(channels)
    x = random_array(rng, (16, channels, *size))
    assert x.nbytes > 2 << 20
    weights = random_sparse(rng, (37, channels, kernel, kernel), 0.05)
    geometry = {"stride": (stride, stride), "pads": pads}
    op = _kernels.Conv(
        _kernels.SparseWeights.from_dense(37, weights[0].size, weights),
        kernel=(kernel, kernel),
        layout="images16",
        algorithm="single",
        microarchitecture="intel",
        isa=isa,
        **geometry,
    )
    assert_close(run(pool, op, x), conv(x, weights, **geometry), channels * kernel * kernel)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("activation", [("none", 0.0, 0.0), ("clip", -1.0, 1.0)])
def test_nan_and_infinity_come_through(
    pool: _kernels.ThreadPool, isa: str, layout: str, activation: tuple[str, float, float]
) -> None:
    x = np.ones((16, 1, 8, 16), np.float32)
    x[:, :, ::3] = [np.nan, np.inf, -np.inf, -0.0] * 4
    op = _kernels.Conv(
        _kernels.SparseWeights.from_dense(4, 1, np.ones((4, 1), np.float32)),
        kernel=(1, 1),
        activation=activation,
        layout=layout,
        isa=isa,
    )
    expected = x.repeat(4, axis=1)
    if activation[0] == "clip":
        expected = np.clip(expected, -1.0, 1.0)
    np.testing.assert_array_equal(run(pool, op, x), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_channels_beyond_one_panel_are_taken_in_slices(pool: _kernels.ThreadPool, layout: str, algorithm: str) -> None:
    rng = np.random.default_rng(1)
    x = random_array(rng, (3, 7000, 2, 3))
    weights = random_sparse(rng, (9, 7000, 3, 3), 0.1)
    op = _kernels.Conv(
        _kernels.SparseWeights.from_dense(9, 63000, weights),
        kernel=(3, 3),
        pads=(1, 1, 1, 1),
        layout=layout,
        algorithm=algorithm,
    )
    assert op.describe(x.shape, pool.threads)["slice_channels"] < 7000
    assert_close(run(pool, op, x), conv(x, weights, pads=(1, 1, 1, 1)), 63000)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_far_dilation_needs_no_panel_for_the_pixels_between(pool: _kernels.ThreadPool, layout: str) -> None:
    rng = np.random.default_rng(2)
    x = random_array(rng, (2, 5, 40, 40))
    weights = random_sparse(rng, (6, 5, 3, 3), 0.5)
    geometry = {"dilation": (18, 18), "pads": (18, 18, 18, 18)}
    op = _kernels.Conv(_kernels.SparseWeights.from_dense(6, 45, weights), kernel=(3, 3), layout=layout, **geometry)
    assert_close(run(pool, op, x), conv(x, weights, **geometry), 45)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [9, 70])  # 8 MiB and more with 70
def test_the_output_may_be_the_residual(pool: _kernels.ThreadPool, layout: str, algorithm: str, size: int) -> None:
    rng = np.random.default_rng(3)
    x = random_array(rng, (16, 30, size, size))
    weights = random_sparse(rng, (30, 30, 3, 3), 0.3)
    residual = random_array(rng, x.shape)
    op = _kernels.Conv(
        _kernels.SparseWeights.from_dense(30, 270, weights),
        kernel=(3, 3),
        pads=(1, 1, 1, 1),
        activation=("clip", 0.0, np.inf),
        layout=layout,
        algorithm=algorithm,
    )
    apart = run(pool, op, x, residual)
    assert_close(apart, conv(x, weights, pads=(1, 1, 1, 1), residual=residual, activation=("clip", 0.0, np.inf)), 270)
    inside, both = (to_layout(pool, array, layout) for array in (x, residual.copy()))
    op.run(pool, x.shape, inside, both, both)
    together = np.empty_like(apart) if layout == "images16" else both
    if layout == "images16":
        _kernels.Reorder("images16").run(pool, x.shape, both, together)
    np.testing.assert_array_equal(together, apart)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=25, deadline=None, suppress_health_check=SLOW_MACHINE)
@given(case=cases, isa=st.sampled_from(ISAS))
def test_the_same_bits_for_any_number_of_threads(
    pools: list[_kernels.ThreadPool], algorithm: str, layout: str, case: Case, isa: str
) -> None:
    """How tiles and rows are divided depends on the number of threads, the order of sums does not."""
    assume(output_exists(case))
    assume(algorithm != "generated" or generates_code(isa))
    x, weights, geometry = operands(case, np.random.default_rng(case.seed))
    op = _kernels.Conv(
        _kernels.SparseWeights.from_dense(len(weights), weights[0].size, weights),
        kernel=case.kernel,
        **geometry,
        layout=layout,
        algorithm=algorithm,
        isa=isa,
    )
    first, *others = (run(pool, op, x) for pool in pools)
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_one_plan_takes_every_shape(pool: _kernels.ThreadPool) -> None:
    rng = np.random.default_rng(5)
    weights = random_sparse(rng, (8, 6, 3, 3), 0.2)
    op = _kernels.Conv(
        _kernels.SparseWeights.from_dense(8, 54, weights), kernel=(3, 3), pads=(1, 1, 1, 1), layout="planes"
    )
    for n, h, w in ((1, 7, 7), (3, 7, 7), (1, 20, 33), (2, 1, 1), (1, 7, 7), (5, 4, 90)):
        x = random_array(rng, (n, 6, h, w))
        assert_close(run(pool, op, x), conv(x, weights, pads=(1, 1, 1, 1)), 54)


def test_an_empty_batch_gives_an_empty_output(pool: _kernels.ThreadPool) -> None:
    op = _kernels.Conv(_kernels.SparseWeights.from_dense(2, 3, np.ones(6, np.float32)), layout="planes")
    assert run(pool, op, np.empty((0, 3, 5, 5), np.float32)).shape == (0, 2, 5, 5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_weights_of_infinity_and_nan_stay_what_they_are(pool: _kernels.ThreadPool, algorithm: str) -> None:
    weights = np.array([[np.inf, 0.0], [np.nan, 1.0]], np.float32)
    op = _kernels.Conv(_kernels.SparseWeights.from_dense(2, 2, weights), layout="planes", algorithm=algorithm)
    y = run(pool, op, np.ones((1, 2, 1, 1), np.float32)).ravel()
    assert y[0] == np.inf
    assert np.isnan(y[1])


def test_wrong_sizes_are_refused(pool: _kernels.ThreadPool) -> None:
    weights = _kernels.SparseWeights.from_dense(4, 18, np.ones(72, np.float32))
    op = _kernels.Conv(weights, kernel=(3, 3), layout="planes")
    x = np.zeros((1, 2, 5, 5), np.float32)
    with pytest.raises(ValueError, match="number of channels"):
        op.output_shape((1, 3, 5, 5))
    with pytest.raises(ValueError, match="out: the array has 7 values"):
        op.run(pool, x.shape, x, np.zeros(7, np.float32))
    with pytest.raises(ValueError, match="one bias per output channel"):
        _kernels.Conv(weights, np.zeros(3, np.float32), kernel=(3, 3))
    with pytest.raises(ValueError, match="whole number of input channels"):
        _kernels.Conv(weights, kernel=(5, 5))
    with pytest.raises(ValueError, match="unknown layout 'nhwc'"):
        _kernels.Conv(weights, kernel=(3, 3), layout="nhwc")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("kernel", "geometry"),
    [
        ((40, 40), {}),
        ((40, 40), {"pads": (8, 3, 0, 20), "stride": (4, 3)}),
        ((1, 1200), {"pads": (0, 590, 0, 590)}),
        ((34, 34), {"dilation": (2, 2), "pads": (20, 12, 9, 20), "groups": 2}),
    ],
)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_kernels_too_large_for_a_panel_are_taken_in_parts(
    pool: _kernels.ThreadPool, layout: str, kernel: tuple[int, int], geometry: dict[str, Any], algorithm: str
) -> None:
    rng = np.random.default_rng(7)
    x = random_array(rng, (2, 4, 44, 44))
    weights = random_sparse(rng, (2, 4 // geometry.get("groups", 1), *kernel), 0.2)
    bias = random_array(rng, (2,))
    relu = ("clip", 0.0, np.inf)
    residual = random_array(rng, conv(x, weights, **geometry).shape)
    op = _kernels.Conv(
        _kernels.SparseWeights.from_dense(2, weights[0].size, weights),
        bias,
        kernel=kernel,
        layout=layout,
        activation=relu,
        algorithm=algorithm,
        **geometry,
    )
    expected = conv(x, weights, bias, **geometry, activation=relu, residual=residual)
    assert_close(run(pool, op, x, residual), expected, weights[0].size)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride", [(2, 2), (1, 3), (2, 1)])
def test_strided_1x1_convolutions_in_nchw(pool: _kernels.ThreadPool, stride: tuple[int, int], groups: int) -> None:
    rng = np.random.default_rng(8)
    for size in ((1, 1), (7, 7), (8, 23), (5, 40)):
        x = random_array(rng, (3, 12, *size))
        weights = random_sparse(rng, (10, 12 // groups, 1, 1), 0.3)
        op = _kernels.Conv(
            _kernels.SparseWeights.from_dense(10, 12 // groups, weights), stride=stride, groups=groups, layout="planes"
        )
        assert_close(run(pool, op, x), conv(x, weights, stride=stride, groups=groups), 12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_operator_names_its_element_type_and_layouts(layout: str) -> None:
    op = _kernels.Conv(_kernels.SparseWeights.from_dense(1, 1, np.ones(1, np.float32)), layout=layout)
    assert (op.dtype, op.input_layout, op.output_layout) == ("float32", layout, layout)
