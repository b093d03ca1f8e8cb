"""Normalization, ReLU and maximum pooling in one pass, against the kernels that do one each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import LANES, Array, Shape, aligned, images_of, lanes_of, random_array

from sift_onnx.backends.cpu import _kernels

EPSILON = 1e-5
ISAS = _kernels.supported_isas()
STEM: dict[str, Any] = {"kernel": (3, 3), "stride": (2, 2), "pads": (1, 1, 1, 1)}


def bytes_for(values: Array) -> Any:
    return aligned(-(-values.size // 4)).view(np.uint8)[: values.size]


class Chain:
    """Random operands, with the outputs and gradients of either way."""

    def __init__(self, x: Array, window: dict[str, Any], relu: bool, of_batch: bool = True, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.shape, self.window, self.relu, self.of_batch, channels = x.shape, window, relu, of_batch, x.shape[1]
        self.x = lanes_of(x)
        self.weight, self.bias = random_array(rng, (channels,)), random_array(rng, (channels,))
        self.given = random_array(rng, (channels,)), np.abs(random_array(rng, (channels,))) + 0.5
        self.out_shape: Shape = _kernels.MaxPool(**window).output_shape(self.shape)
        self.dy = lanes_of(random_array(rng, self.out_shape), idle=0)

    def apart(self, isa: str) -> dict[str, Array]:
        pool, channels = _kernels.ThreadPool(1), self.shape[1]
        normalized, out, dz, dx = (
            aligned(self.x.size),
            aligned(self.dy.size),
            aligned(self.x.size),
            aligned(self.x.size),
        )
        taps, mean, inverse_std, variance, dweight, dbias = bytes_for(out), *(aligned(channels) for _ in range(5))
        operands = (self.shape, self.x, self.weight, self.bias)
        if self.of_batch:
            _kernels.batch_norm_forward(
                pool, *operands, EPSILON, self.relu, None, normalized, mean, inverse_std, variance, isa
            )
        else:
            mean, inverse_std = self.given
            variance = np.zeros(channels, np.float32)
            _kernels.batch_norm_apply(pool, *operands, mean, inverse_std, self.relu, None, normalized, isa)
        _kernels.max_pool_forward(pool, self.shape, normalized, out, taps, isa=isa, **self.window)
        _kernels.max_pool_backward(pool, self.shape, self.dy, taps, dz, isa=isa, **self.window)
        _kernels.batch_norm_backward(
            pool, self.shape, dz, self.x, normalized if self.relu else None, self.weight, mean, inverse_std, dx,
            dweight, dbias, of_batch=self.of_batch, isa=isa,
        )  # fmt: skip
        return {
            "out": out, "mean": mean, "inverse_std": inverse_std, "variance": variance, "dx": dx, "dweight": dweight,
            "dbias": dbias,
        }  # fmt: skip

    def at_once(self, isa: str, threads: int = 2) -> dict[str, Array]:
        pool, channels = _kernels.ThreadPool(threads), self.shape[1]
        out, chosen, dx = aligned(self.dy.size), aligned(self.dy.size), aligned(self.x.size)
        taps, dweight, dbias = bytes_for(out), aligned(channels), aligned(channels)
        mean, inverse_std = (array.copy() for array in self.given)
        variance = np.zeros(channels, np.float32)
        _kernels.batch_norm_pool_forward(
            pool, self.shape, self.x, self.weight, self.bias, EPSILON if self.of_batch else None, self.relu, out,
            chosen, taps, mean, inverse_std, variance, isa=isa, **self.window,
        )  # fmt: skip
        _kernels.batch_norm_pool_backward(
            pool, self.shape, self.dy, self.x, chosen, taps, self.weight, self.bias, mean, inverse_std, self.relu,
            self.of_batch, dx, dweight, dbias, isa=isa, **self.window,
        )  # fmt: skip
        return {
            "out": out, "mean": mean, "inverse_std": inverse_std, "variance": variance, "dx": dx, "dweight": dweight,
            "dbias": dbias,
        }  # fmt: skip


def check(case: Chain, isa: str) -> None:
    ours, theirs = case.at_once(isa), case.apart(isa)
    for name in ("mean", "inverse_std", "variance"):
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    np.testing.assert_array_equal(images_of(ours["out"], case.out_shape), images_of(theirs["out"], case.out_shape))
    np.testing.assert_allclose(
        images_of(ours["dx"], case.shape, idle_is_zero=True), images_of(theirs["dx"], case.shape), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(ours["dweight"], theirs["dweight"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ours["dbias"], theirs["dbias"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 35),
    channels=st.integers(1, 3),
    size=st.tuples(st.integers(4, 12), st.integers(4, 12)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.integers(0, 1),
    relu=st.booleans(),
    of_batch=st.booleans(),
    distinct=st.integers(3, 40),
    seed=st.integers(0, 99),
)
def test_one_pass_gives_what_three_give(
    isa: str, n: int, channels: int, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int],
    padding: int, relu: bool, of_batch: bool, distinct: int, seed: int,
) -> None:  # fmt: skip
    """With maxima that several pixels share, and factors of either sign."""
    pads = tuple(min(padding, extent - 1) for extent in kernel) * 2
    x = np.random.default_rng(seed).integers(-distinct, distinct, (n, channels, *size)).astype(np.float32)
    x[0, :, 0, 0] += 0.5  # so that no channel has one value alone
    check(Chain(x, {"kernel": kernel, "stride": stride, "pads": pads}, relu, of_batch, seed), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_large_tensors_are_written_past_the_caches(isa: str) -> None:
    # Numbers that are next to each other might be normalized to the same one: then either is a maximum.
    x = np.round(random_array(np.random.default_rng(0), (40, 40, 64, 64)) * 256)
    check(Chain(x, STEM, relu=True), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_any_number_of_threads_writes_the_same_bits(isa: str) -> None:
    case = Chain(random_array(np.random.default_rng(0), (33, 21, 9, 8)), STEM, relu=True)
    expected = case.at_once(isa, threads=1)
    for threads in (2, 3):
        for name, found in case.at_once(isa, threads).items():
            np.testing.assert_array_equal(found, expected[name], err_msg=name)


@pytest.mark.parametrize("isa", ISAS)
def test_nan_passes_on_and_stays_in_its_channel(isa: str) -> None:
    x = random_array(np.random.default_rng(0), (3, 2, 8, 8))
    x[1, 0, 4, 4] = np.nan
    case = Chain(x, STEM, relu=True, of_batch=False)
    out = images_of(case.at_once(isa)["out"], case.out_shape)
    assert np.isnan(out[1, 0, 2, 2])
    assert np.isnan(out).sum() == 1
    np.testing.assert_array_equal(out, images_of(case.apart(isa)["out"], case.out_shape))


def test_windows_without_pixels_are_refused() -> None:
    case = Chain(np.ones((1, 1, 4, 4), np.float32), {"kernel": (1, 1), "pads": (1, 0, 0, 0)}, relu=True)
    with pytest.raises(ValueError, match="a window has no pixels"):
        case.at_once("")
    with pytest.raises(ValueError, match="chosen: the array has 16 values, the shape 320"):
        _kernels.batch_norm_pool_forward(
            _kernels.ThreadPool(1), case.shape, case.x, None, None, EPSILON, True, aligned(320), aligned(LANES),
            bytes_for(aligned(320)), aligned(1), aligned(1), **case.window,
        )  # fmt: skip
