"""Layer normalization of tokens in images16, forward and backward, against its formula in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import LANES, Array, Shape, aligned, images_of, lanes_of, random_array

from sift_onnx.backends.cpu import _kernels

EPSILON = 1e-5
ISAS = _kernels.supported_isas()


class LayerNormCase:
    """Random operands, and what comes out of them by the formula."""

    def __init__(self, tokens: int, channels: int, seed: int, affine: bool, centers: bool = True) -> None:
        rng = np.random.default_rng(seed)
        self.shape: Shape = (tokens, channels, 1, 1)
        self.x = random_array(rng, self.shape) * 2 + 5
        self.dy = random_array(rng, self.shape)
        self.weight = random_array(rng, (channels,)) if affine else None
        self.bias = random_array(rng, (channels,)) if affine else None
        exact = self.x.astype(np.float64).reshape(tokens, channels)
        dy = self.dy.astype(np.float64).reshape(tokens, channels)
        self.centers = centers
        self.mean = exact.mean(1) * centers
        self.inverse_std = 1 / np.sqrt(((exact - self.mean[:, None]) ** 2).mean(1) + EPSILON)
        normalized = (exact - self.mean[:, None]) * self.inverse_std[:, None]
        self.out, gradient = normalized, dy
        if self.weight is not None and self.bias is not None:
            self.out = normalized * self.weight + self.bias
            gradient = dy * self.weight
        slope = (gradient * normalized).mean(1, keepdims=True)
        mean = gradient.mean(1, keepdims=True) * centers
        self.dx = self.inverse_std[:, None] * (gradient - mean - normalized * slope)
        self.dweight, self.dbias = (dy * normalized).sum(0), dy.sum(0)

    def forward(self, threads: int, isa: str) -> tuple[Array, Array, Array]:
        x = lanes_of(self.x)
        lanes = x.size // self.shape[1]
        out, mean, inverse_std = aligned(x.size), aligned(lanes), aligned(lanes)
        written = mean if self.centers else None
        if not self.centers:
            mean[:] = 0
        _kernels.layer_norm_forward(
            _kernels.ThreadPool(threads), self.shape, x, self.weight, self.bias, EPSILON, out, written, inverse_std, isa
        )
        return out, mean, inverse_std

    def backward(self, threads: int, isa: str, mean: Array, inverse_std: Array) -> tuple[Array, Array, Array]:
        dx, dweight, dbias = aligned(lanes_of(self.x).size), aligned(self.shape[1]), aligned(self.shape[1])
        _kernels.layer_norm_backward(
            _kernels.ThreadPool(threads), self.shape, lanes_of(self.dy), lanes_of(self.x), self.weight,
            mean if self.centers else None, inverse_std, dx, dweight, dbias, isa
        )  # fmt: skip
        return dx, dweight, dbias


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 200),
    channels=st.integers(2, 150),
    seed=st.integers(0, 99),
    affine=st.booleans(),
    centers=st.booleans(),
)
def test_results_and_gradients_are_those_of_the_formula(
    isa: str, tokens: int, channels: int, seed: int, affine: bool, centers: bool
) -> None:
    """Without a mean to subtract, of RMS normalization."""
    case = LayerNormCase(tokens, channels, seed, affine, centers)
    out, mean, inverse_std = case.forward(2, isa)
    # Two values that are close to each other have an inverse deviation of hundreds.
    few = 20.0 if channels < 4 else 1.0
    found = images_of(out, case.shape).reshape(tokens, channels)
    np.testing.assert_allclose(found, case.out, rtol=1e-4 * few, atol=1e-5 * few)
    np.testing.assert_allclose(mean[:tokens], case.mean, rtol=1e-6)
    np.testing.assert_allclose(inverse_std[:tokens], case.inverse_std, rtol=1e-5 * few)
    assert not mean[tokens:].any()
    assert not inverse_std[tokens:].any()
    assert np.isfinite(out).all()
    dx, dweight, dbias = case.backward(2, isa, mean, inverse_std)
    found = images_of(dx, case.shape, idle_is_zero=True).reshape(tokens, channels)
    scale = float(case.inverse_std.max())
    np.testing.assert_allclose(found, case.dx, rtol=1e-3, atol=1e-5 * max(1.0, scale) * few)
    np.testing.assert_allclose(dweight, case.dweight, rtol=1e-4, atol=1e-4 * few)
    np.testing.assert_allclose(dbias, case.dbias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_any_number_of_threads_writes_the_same_bits(isa: str) -> None:
    case = LayerNormCase(1100, 75, 1, affine=True)
    found = []
    for threads in (1, 2, 3):
        forward = case.forward(threads, isa)
        found.append((*forward, *case.backward(threads, isa, *forward[1:])))
    for arrays in found[1:]:
        for one, other in zip(arrays, found[0], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("isa", ISAS)
def test_a_variance_far_below_the_mean_keeps_its_digits(isa: str) -> None:
    x = random_array(np.random.default_rng(0), (17, 9712, 1, 1)) + np.float32(1000)
    out, mean, inverse_std = aligned(lanes_of(x).size), aligned(32), aligned(32)
    _kernels.layer_norm_forward(
        _kernels.ThreadPool(2), x.shape, lanes_of(x), None, None, EPSILON, out, mean, inverse_std, isa
    )
    exact = x.astype(np.float64).reshape(17, -1)
    np.testing.assert_allclose(mean[:17], exact.mean(1), rtol=1e-7)
    np.testing.assert_allclose(inverse_std[:17], 1 / np.sqrt(exact.var(1) + EPSILON), rtol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_large_tensors_may_be_overwritten_by_results_and_gradients(isa: str) -> None:
    case = LayerNormCase(1000, 2100, 2, affine=True)
    pool = _kernels.ThreadPool(2)
    expected, mean, inverse_std = case.forward(2, isa)
    found = images_of(expected, case.shape).reshape(case.out.shape)
    np.testing.assert_allclose(found, case.out, rtol=1e-4, atol=1e-4)
    x, dy = lanes_of(case.x), lanes_of(case.dy)
    _kernels.layer_norm_forward(pool, case.shape, x, case.weight, case.bias, EPSILON, x, mean, inverse_std, isa)
    np.testing.assert_array_equal(x, expected)
    apart = case.backward(2, isa, mean, inverse_std)
    _kernels.layer_norm_backward(pool, case.shape, dy, lanes_of(case.x), case.weight, mean, inverse_std, dy, isa=isa)
    np.testing.assert_array_equal(dy, apart[0])


def test_what_is_no_matrix_or_has_no_channels_is_refused() -> None:
    pool, lanes = _kernels.ThreadPool(1), aligned(LANES)
    with pytest.raises(ValueError, match=r"the shape must be \(tokens, channels, 1, 1\)"):
        _kernels.layer_norm_forward(pool, (1, 1, 2, 1), aligned(32), None, None, EPSILON, aligned(32), lanes, lanes)
    with pytest.raises(ValueError, match="a token has no channels"):
        _kernels.layer_norm_forward(pool, (1, 0, 1, 1), aligned(0), None, None, EPSILON, aligned(0), lanes, lanes)
