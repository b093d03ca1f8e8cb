"""Maximum pooling of tensors in images16 that remembers its taps, and its gradient, against plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import LANES, Array, Shape, aligned, images_of, lanes_of, random_array

from sift_onnx.backends.cpu import _kernels

ISAS = _kernels.supported_isas()
PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))
NO_TAP = 255


class MaxPoolCase:
    """Operands, and what comes out of them tap by tap."""

    def __init__(self, x: Array, **window: Any) -> None:
        self.x, self.window, self.shape = x, window, x.shape
        kernel, stride, dilation, pads = (window[key] for key in ("kernel", "stride", "dilation", "pads"))
        n, c, h, w = x.shape
        spans = [(size - 1) * step for size, step in zip(kernel, dilation, strict=True)]
        self.out_h = max(0, (h + pads[0] + pads[2] - spans[0] - 1) // stride[0] + 1)
        self.out_w = max(0, (w + pads[1] + pads[3] - spans[1] - 1) // stride[1] + 1)
        self.out = np.full((n, c, self.out_h, self.out_w), -np.inf, np.float32)
        self.taps = np.full(self.out.shape, NO_TAP, np.uint8)
        for y in range(self.out_h):
            for z in range(self.out_w):
                for tap in range(kernel[0] * kernel[1]):
                    place = self.place(y, z, tap)
                    if place is None:
                        continue
                    value, most = x[:, :, place[0], place[1]], self.out[:, :, y, z]
                    taken = (value > most) | np.isnan(value) | (self.taps[:, :, y, z] == NO_TAP)
                    self.out[:, :, y, z] = np.where(taken, value, most)
                    self.taps[:, :, y, z][taken] = tap

    def place(self, y: int, z: int, tap: int) -> tuple[int, int] | None:
        """Of the input, what a tap of an output reads."""
        (_, columns), stride, dilation, pads = (self.window[key] for key in ("kernel", "stride", "dilation", "pads"))
        row = y * stride[0] - pads[0] + tap // columns * dilation[0]
        column = z * stride[1] - pads[1] + tap % columns * dilation[1]
        return (row, column) if 0 <= row < self.shape[2] and 0 <= column < self.shape[3] else None

    def gradient(self, dy: Array) -> Any:
        dx = np.zeros(self.shape)
        for at in np.ndindex(dy.shape):
            place = None if self.taps[at] == NO_TAP else self.place(at[2], at[3], int(self.taps[at]))
            if place is not None:
                dx[(*at[:2], *place)] += dy[at]
        return dx

    def forward(self, threads: int, isa: str) -> tuple[Array, Any]:
        out = aligned(lanes_of(self.out).size)
        taps = aligned(-(-out.size // 4)).view(np.uint8)[: out.size]
        _kernels.max_pool_forward(
            _kernels.ThreadPool(threads), self.shape, lanes_of(self.x), out, taps, isa=isa, **self.window
        )
        return out, taps

    def backward(self, threads: int, isa: str, dy: Array, taps: Any) -> Array:
        dx = aligned(lanes_of(self.x).size)
        dy_lanes = lanes_of(dy, idle=0)
        _kernels.max_pool_backward(_kernels.ThreadPool(threads), self.shape, dy_lanes, taps, dx, isa=isa, **self.window)
        return dx


def check(case: MaxPoolCase, isa: str) -> None:
    dy = random_array(np.random.default_rng(0), case.out.shape)
    out, taps = case.forward(2, isa)
    np.testing.assert_array_equal(images_of(out, case.out.shape), case.out)
    np.testing.assert_array_equal(images_of(taps, case.out.shape), case.taps)
    dx = case.backward(2, isa, dy, taps)
    np.testing.assert_allclose(images_of(dx, case.shape, idle_is_zero=True), case.gradient(dy), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 35), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    kernel=PAIRS,
    stride=PAIRS,
    dilation=PAIRS,
    pads=st.tuples(*[st.integers(-1, 3)] * 4),
    distinct=st.integers(2, 40),
    seed=st.integers(0, 99),
)
def test_maxima_taps_and_gradients_are_those_of_the_windows(
    isa: str,
    shape: Shape,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    pads: Shape,
    distinct: int,
    seed: int,
) -> None:
    values = np.random.default_rng(seed).integers(-distinct, distinct, shape).astype(np.float32)
    check(MaxPoolCase(values, kernel=kernel, stride=stride, dilation=dilation, pads=pads), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_nan_is_above_all_numbers_and_minus_infinity_above_padding(isa: str) -> None:
    x = random_array(np.random.default_rng(3), (17, 2, 8, 9))
    x[x > 1] = np.nan
    x[:, 1, :4] = -np.inf
    check(MaxPoolCase(x, kernel=(3, 3), stride=(2, 2), dilation=(1, 1), pads=(1, 1, 1, 1)), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_large_tensors_have_the_same_bits_for_any_number_of_threads(isa: str) -> None:
    x = np.maximum(random_array(np.random.default_rng(4), (16, 350, 20, 20)), 0)
    window = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "pads": (1, 1, 1, 1)}
    case = MaxPoolCase(x, **window)
    dy = random_array(np.random.default_rng(5), case.out.shape)
    found = []
    for threads in (1, 2, 3):
        out, taps = case.forward(threads, isa)
        found.append((out, taps, case.backward(threads, isa, dy, taps)))
    np.testing.assert_array_equal(images_of(found[0][0], case.out.shape), case.out)
    np.testing.assert_array_equal(images_of(found[0][1], case.out.shape), case.taps)
    for arrays in found[1:]:
        for one, other in zip(arrays, found[0], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kernel", [(15, 17), (255, 1)])
def test_a_byte_counts_255_taps(kernel: tuple[int, int]) -> None:
    x = random_array(np.random.default_rng(6), (3, 1, 260, 18))
    check(MaxPoolCase(x, kernel=kernel, stride=(7, 3), dilation=(1, 1), pads=(2, 3, 4, 1)), "")


def test_more_taps_than_a_byte_counts_are_refused() -> None:
    one = aligned(LANES)
    with pytest.raises(ValueError, match="the kernel has 256 taps; at most 255 are supported in training"):
        _kernels.max_pool_forward(
            _kernels.ThreadPool(1), (1, 1, 1, 1), one, one, one.view(np.uint8)[:16], kernel=(16, 16)
        )


def test_an_input_smaller_than_the_window_has_no_gradient() -> None:
    dx, empty = aligned(LANES * 4), aligned(0)
    shape, pool = (1, 1, 2, 2), _kernels.ThreadPool(1)
    _kernels.max_pool_forward(pool, shape, aligned(LANES * 4), empty, empty.view(np.uint8), kernel=(3, 3))
    _kernels.max_pool_backward(pool, shape, empty, empty.view(np.uint8), dx, kernel=(3, 3))
    np.testing.assert_array_equal(dx, 0)
