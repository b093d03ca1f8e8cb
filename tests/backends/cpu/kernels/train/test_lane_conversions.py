"""Tensors into images16 and back, and sums of their channels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import LANES, Shape, aligned, images_of, random_array

from sift_onnx.backends.cpu import _kernels

ISAS = _kernels.supported_isas()
SHAPES = st.tuples(st.integers(1, 40), st.integers(1, 70), st.integers(1, 9), st.integers(1, 9))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=30, deadline=None)
@given(shape=SHAPES)
def test_lanes_hold_images_and_idle_ones_zeros(isa: str, shape: Shape) -> None:
    n, c, h, w = shape
    groups = -(-n // LANES)
    x = random_array(np.random.default_rng(n), shape)
    pool = _kernels.ThreadPool(2)
    blocks = aligned(groups * LANES * c * h * w)
    _kernels.to_lanes(pool, shape, x, blocks, isa)
    images = blocks.reshape(groups, c, h, w, LANES).transpose(0, 4, 1, 2, 3).reshape(-1, c, h, w)
    np.testing.assert_array_equal(images[:n], x)
    assert not images[n:].any()
    back = np.full(shape, np.nan, np.float32)
    _kernels.from_lanes(pool, shape, blocks, back, isa)
    np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("channels", [1056, 1030])
def test_matrices_beyond_the_caches_come_back(isa: str, channels: int) -> None:
    shape = (2060, channels, 1, 1)
    x = random_array(np.random.default_rng(1), shape)
    blocks, back = aligned(2064 * channels), aligned(x.size)
    pool = _kernels.ThreadPool(2)
    _kernels.to_lanes(pool, shape, x, blocks, isa)
    np.testing.assert_array_equal(images_of(blocks, shape, idle_is_zero=True), x)
    _kernels.from_lanes(pool, shape, blocks, back, isa)
    np.testing.assert_array_equal(back, x.reshape(-1))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=30, deadline=None)
@given(shape=SHAPES)
def test_sums_of_channels_leave_idle_lanes_out(isa: str, shape: Shape) -> None:
    n, c, h, w = shape
    groups = -(-n // LANES)
    images = random_array(np.random.default_rng(c), (groups * LANES, c, h, w)) + 3
    blocks = aligned(images.size)
    blocks[:] = images.reshape(groups, LANES, c, h, w).transpose(0, 2, 3, 4, 1).reshape(-1)
    sums = [np.full(c, np.nan, np.float32) for _ in range(2)]
    for threads, out in zip((1, 3), sums, strict=True):
        _kernels.channel_sums(_kernels.ThreadPool(threads), shape, blocks, out, isa)
    np.testing.assert_allclose(sums[0], images[:n].astype(np.float64).sum((0, 2, 3)), rtol=1e-6)
    np.testing.assert_array_equal(sums[1], sums[0])


@pytest.mark.parametrize("isa", ISAS)
def test_sums_of_many_values_lose_no_digits(isa: str) -> None:
    tokens = 1 << 18
    blocks = aligned(tokens * 3)
    blocks[:] = 0.1
    out = np.empty(3, np.float32)
    _kernels.channel_sums(_kernels.ThreadPool(2), (tokens, 3, 1, 1), blocks, out, isa)
    np.testing.assert_allclose(out, float(np.float32(0.1)) * tokens, rtol=1e-7)


def test_arrays_that_do_not_fit_are_refused() -> None:
    pool = _kernels.ThreadPool(1)
    with pytest.raises(ValueError, match="out: the array has 16 values, the shape 32"):
        _kernels.to_lanes(pool, (3, 2, 1, 1), np.ones(6, np.float32), aligned(16))
    with pytest.raises(ValueError, match="x: an array in images16 must be aligned to 64 bytes"):
        _kernels.from_lanes(pool, (16, 1, 1, 1), aligned(17)[1:], np.ones(16, np.float32))
