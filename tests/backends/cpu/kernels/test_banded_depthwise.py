"""Layers in bands of rows compute what the same layers compute one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from kernel_reference import ACTIVATIONS, Array, assert_close, random_array, random_sparse, run

from sift_onnx.backends.cpu import _kernels

ISAS = _kernels.supported_isas()
POOLS = [_kernels.ThreadPool(threads) for threads in (1, 2)]
PAIRS = st.tuples(st.integers(1, 5), st.integers(1, 5))
STRIDES = st.tuples(st.integers(1, 3), st.integers(1, 3))


def conv(rng: np.random.Generator, rows: int, columns: int, density: float, **options: Any) -> _kernels.Conv:
    values = random_sparse(rng, (rows, columns), density)
    weights = _kernels.SparseWeights.from_dense(rows, columns, values)
    return _kernels.Conv(weights, random_array(rng, (rows,)), layout="planes", **options)


def depthwise(rng: np.random.Generator, channels: int, kernel: tuple[int, int], **options: Any) -> _kernels.Depthwise:
    values = random_sparse(rng, (channels, kernel[0] * kernel[1]), 0.8)
    weights = _kernels.SparseWeights.from_dense(*values.shape, values)
    return _kernels.Depthwise(weights, random_array(rng, (channels,)), kernel=kernel, layout="planes", **options)


@dataclass
class Layers:
    """A chain, and what it is made of."""

    before: _kernels.Conv | None
    depthwise: _kernels.Depthwise
    after: _kernels.Conv | None

    def one_by_one(self, x: Array, second: Array | None) -> Array:
        if self.before is not None:
            x = run(POOLS[0], self.before, x)
        x = run(POOLS[0], self.depthwise, x)
        return x if self.after is None else run(POOLS[0], self.after, x, second)

    def banded(self, rows: int = 0) -> _kernels.BandedDepthwise:
        return _kernels.BandedDepthwise(self.before, self.depthwise, self.after, rows=rows)


def bottleneck(isa: str = "", kernel: int = 3, stride: int = 1, channels: int = 24) -> Layers:
    rng = np.random.default_rng(0)
    pads = (kernel // 2,) * 4
    relu = ("clip", 0.0, 6.0)
    return Layers(
        conv(rng, channels, 8, 0.4, activation=relu, isa=isa),
        depthwise(rng, channels, (kernel, kernel), stride=(stride, stride), pads=pads, activation=relu, isa=isa),
        conv(rng, 8, channels, 0.4, isa=isa),
    )


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    images=st.integers(1, 3),
    size=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    kernel=PAIRS,
    stride=STRIDES,
    dilation=STRIDES,
    pads=st.tuples(*[st.integers(0, 4)] * 4),
    channels=st.tuples(*[st.sampled_from((1, 3, 8, 17, 40))] * 3),
    density=st.sampled_from((0.05, 0.3, 1.0)),
    ends=st.sampled_from(((True, True), (True, False), (False, True))),
    adds=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS),
    rows=st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_bands_compute_what_one_layer_after_the_other_does(
    isa, images, size, kernel, stride, dilation, pads, channels, density, ends, adds, activation, rows, seed
):  # fmt: skip
    rng = np.random.default_rng(seed)
    inner = channels[1] if ends[0] else channels[0]
    layers = Layers(
        conv(rng, inner, channels[0], density, activation=activation, isa=isa) if ends[0] else None,
        depthwise(rng, inner, kernel, stride=stride, dilation=dilation, pads=pads, activation=activation, isa=isa),
        conv(rng, channels[2], inner, density, activation=activation, isa=isa) if ends[1] else None,
    )
    x = random_array(rng, (images, channels[0], *size))
    banded = layers.banded(rows)
    shape = banded.output_shape(x.shape)
    assume(min(shape) > 0)
    second = random_array(rng, shape) if adds and ends[1] else None
    expected = layers.one_by_one(x, second)
    found = [run(pool, banded, x, second) for pool in POOLS]
    # A tile of few blocks may add its sums in another order.
    assert_close(found[0], expected, sum(channels))
    np.testing.assert_array_equal(found[1], found[0])


@pytest.mark.parametrize("isa", ISAS)
def test_what_an_earlier_run_has_left_is_not_read(isa: str) -> None:
    layers = bottleneck(isa)
    x = random_array(np.random.default_rng(1), (1, 8, 13, 11))
    for pool in POOLS:
        run(pool, layers.banded(5), np.full((2, 8, 40, 40), np.nan, np.float32))
        assert_close(run(pool, layers.banded(5), x), layers.one_by_one(x, None), 24)


def test_the_result_may_take_the_place_of_what_is_added() -> None:
    layers = bottleneck()
    rng = np.random.default_rng(2)
    x, second = random_array(rng, (2, 8, 20, 20)), random_array(rng, (2, 8, 20, 20))
    expected = layers.one_by_one(x, second)
    layers.banded(4).run(POOLS[1], x.shape, x, second, second)
    np.testing.assert_array_equal(second, expected)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (5, 1), (3, 2), (7, 1), (1, 2)])
@pytest.mark.parametrize("threads", [1, 2, 5, 64])
def test_bands_have_rows_for_the_cache_and_work_for_all_threads(kernel: int, stride: int, threads: int) -> None:
    layers = bottleneck(kernel=kernel, stride=stride, channels=192)
    banded = layers.banded()
    shape = (1, 8, 128, 128)
    height, width = banded.output_shape(shape)[2:]
    rows = banded.band_rows(shape, threads)
    assert 1 <= rows <= height
    bands = -(-height // rows)
    expanded = 192 * 128 * 4 * ((rows - 1) * stride + kernel)
    filtered = 192 * width * 4 * rows
    assert rows == 1 or expanded + filtered <= _kernels.cache_bytes()[1]
    repeated = max(kernel - stride, 0) / (rows * stride)
    is_even = bands / (-(-bands // threads) * threads) >= 0.9
    assert banded.pays(shape, threads) == (repeated <= 0.25 and is_even and rows * width >= 192)


def test_bands_do_not_pay_where_all_tensors_stay_in_the_cache() -> None:
    banded = bottleneck().banded()
    assert not banded.pays((1, 8, 14, 14), 1)
    assert not banded.pays((0, 8, 512, 512), 1)
    # Many small images: of 13 pixels, too few share the weights.
    images = 1 + _kernels.cache_bytes()[1] // (2 * 24 * 13 * 13 * 4)
    assert not banded.pays((images, 8, 13, 13), 1)
    assert banded.pays((images, 8, 14, 14), 1)
    assert banded.pays((1, 8, 512, 128), 1)  # bands of enough rows in a second-level cache of 512 KiB


def test_layers_that_bands_cannot_have_are_refused() -> None:
    rng = np.random.default_rng(3)
    layers = bottleneck()
    weights = _kernels.SparseWeights.from_dense(8, 72, random_array(rng, (8, 72)))
    square = _kernels.Conv(weights, kernel=(3, 3), layout="planes")
    lanes = _kernels.Conv(_kernels.SparseWeights.from_dense(8, 24, random_array(rng, (8, 24))), layout="images16")
    assert not _kernels.BandedDepthwise.joins(square)
    assert not _kernels.BandedDepthwise.joins(lanes)
    for after in (square, lanes, conv(rng, 8, 24, 0.4, stride=(2, 2))):
        with pytest.raises(ValueError, match="must be pointwise"):
            _kernels.BandedDepthwise(None, layers.depthwise, after)
    with pytest.raises(ValueError, match="no layer next to"):
        _kernels.BandedDepthwise(None, layers.depthwise, None)
    with pytest.raises(ValueError, match="must not be negative"):
        layers.banded(-1)
    with pytest.raises(ValueError, match="number of channels"):
        _kernels.BandedDepthwise(None, layers.depthwise, conv(rng, 8, 23, 0.4)).output_shape((1, 24, 9, 9))
