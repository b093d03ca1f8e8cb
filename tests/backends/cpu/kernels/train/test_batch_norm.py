"""Batch normalization of tensors in images16, forward and backward, against its formula in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import Array, Shape, aligned, images_of, lanes_of, random_array

from sift_onnx.backends.cpu import _kernels

EPSILON = 1e-5
ISAS = _kernels.supported_isas()
SHAPES = st.tuples(st.integers(1, 35), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9))


def per_channel(values: Array) -> Array:
    return values.reshape(1, -1, 1, 1)


class BatchNormCase:
    """Random operands, and what comes out of them by the formula."""

    def __init__(self, shape: Shape, seed: int, affine: bool, relu: bool, residual: bool, of_batch: bool) -> None:
        rng = np.random.default_rng(seed)
        self.shape, self.relu, self.of_batch = shape, relu, of_batch
        self.x = random_array(rng, shape) * 2 + 5
        self.dy = random_array(rng, shape)
        self.weight = random_array(rng, (shape[1],)) if affine else None
        self.bias = random_array(rng, (shape[1],)) if affine else None
        self.residual = random_array(rng, shape) if residual else None
        exact = self.x.astype(np.float64)
        self.mean = exact.mean((0, 2, 3)) if of_batch else np.full(shape[1], 4.5)
        self.variance = exact.var((0, 2, 3)) if of_batch else np.full(shape[1], 3.0)
        self.inverse_std = 1 / np.sqrt(self.variance + EPSILON)
        self.normalized = (exact - per_channel(self.mean)) * per_channel(self.inverse_std)
        result = self.normalized
        if self.weight is not None and self.bias is not None:
            result = result * per_channel(self.weight) + per_channel(self.bias)
        if self.residual is not None:
            result = result + self.residual
        self.out = np.maximum(result, 0) if relu else result

    def forward(self, pool: _kernels.ThreadPool, isa: str) -> Array:
        out = aligned(lanes_of(self.x).size)
        residual = None if self.residual is None else lanes_of(self.residual)
        x, channels = lanes_of(self.x), self.shape[1]
        if self.of_batch:
            mean, inverse_std, variance = aligned(channels), aligned(channels), aligned(channels)
            _kernels.batch_norm_forward(
                pool, self.shape, x, self.weight, self.bias, EPSILON, self.relu, residual, out, mean, inverse_std,
                variance, isa
            )  # fmt: skip
            np.testing.assert_allclose(mean, self.mean, rtol=1e-6)
            np.testing.assert_allclose(variance, self.variance, rtol=1e-5, atol=1e-9)
        else:
            mean, inverse_std = self.mean.astype(np.float32), self.inverse_std.astype(np.float32)
            _kernels.batch_norm_apply(
                pool, self.shape, x, self.weight, self.bias, mean, inverse_std, self.relu, residual, out, isa
            )
        return out

    def gradients(self, out: Array) -> tuple[Array, Array, Array, Array]:
        """Of x, weight, bias and residual, for this output."""
        dz = np.where(out > 0, self.dy, 0).astype(np.float64) if self.relu else self.dy.astype(np.float64)
        dweight, dbias = (dz * self.normalized).sum((0, 2, 3)), dz.sum((0, 2, 3))
        dx = dz
        if self.of_batch:
            count = self.x.size / self.shape[1]
            dx = dz - per_channel(dbias) / count - self.normalized * per_channel(dweight) / count
        scale = self.inverse_std if self.weight is None else self.inverse_std * self.weight
        return dx * per_channel(scale), dweight, dbias, dz

    def backward(self, pool: _kernels.ThreadPool, isa: str, out: Array | None) -> tuple[Array, ...]:
        size, channels = lanes_of(self.x).size, self.shape[1]
        dx, dweight, dbias, dresidual = aligned(size), aligned(channels), aligned(channels), aligned(size)
        mean, inverse_std = self.mean.astype(np.float32), self.inverse_std.astype(np.float32)
        _kernels.batch_norm_backward(
            pool, self.shape, lanes_of(self.dy), lanes_of(self.x), out, self.weight, mean, inverse_std, dx, dweight,
            dbias, dresidual, bias=self.bias, relu=self.relu, of_batch=self.of_batch, isa=isa
        )  # fmt: skip
        return dx, dweight, dbias, dresidual


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None)
@given(
    shape=SHAPES,
    seed=st.integers(0, 99),
    affine=st.booleans(),
    relu=st.booleans(),
    residual=st.booleans(),
    of_batch=st.booleans(),
)
def test_results_and_gradients_are_those_of_the_formula(
    isa: str, shape: Shape, seed: int, affine: bool, relu: bool, residual: bool, of_batch: bool
) -> None:
    # The variance of few values may be next to nothing, and its inverse root huge.
    if of_batch and shape[0] * shape[2] * shape[3] < 4:
        shape = (shape[0] + 4, *shape[1:])
    case = BatchNormCase(shape, seed, affine, relu, residual, of_batch)
    pool = _kernels.ThreadPool(2)
    out = case.forward(pool, isa)
    np.testing.assert_allclose(images_of(out, shape), case.out, rtol=1e-4, atol=1e-4)
    dx, dweight, dbias, dresidual = case.gradients(images_of(out, shape))
    found = case.backward(pool, isa, out if relu else None)
    np.testing.assert_allclose(images_of(found[0], shape, idle_is_zero=True), dx, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found[1], dweight, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(found[2], dbias, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(images_of(found[3], shape, idle_is_zero=True), dresidual, rtol=1e-6)
    if relu and not residual:
        again = case.backward(pool, isa, None)
        for of_out, of_x in zip(found, again, strict=True):
            np.testing.assert_array_equal(of_out, of_x)


@pytest.mark.parametrize("isa", ISAS)
def test_any_number_of_threads_writes_the_same_bits(isa: str) -> None:
    case = BatchNormCase((21, 37, 6, 5), 1, affine=True, relu=True, residual=True, of_batch=True)
    outs, gradients = [], []
    for threads in (1, 2, 5):
        pool = _kernels.ThreadPool(threads)
        outs.append(images_of(case.forward(pool, isa), case.shape))
        gradients.append(case.backward(pool, isa, lanes_of(outs[0])))
    for out, gradient in zip(outs[1:], gradients[1:], strict=True):
        np.testing.assert_array_equal(out, outs[0])
        for one, other in zip(gradient, gradients[0], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("outlier", [0.0, 1e4])
def test_a_variance_far_below_the_mean_keeps_its_digits(isa: str, outlier: float) -> None:
    shape = (16, 2, 60, 60)
    x = random_array(np.random.default_rng(0), shape) + np.float32(1000)
    x[0, :, 0, 0] += np.float32(outlier)
    mean, inverse_std, variance = np.empty(2, np.float32), np.empty(2, np.float32), np.empty(2, np.float32)
    _kernels.batch_norm_forward(
        _kernels.ThreadPool(2), shape, lanes_of(x), None, None, EPSILON, False, None, aligned(x.size), mean,
        inverse_std, variance, isa
    )  # fmt: skip
    np.testing.assert_allclose(variance, x.astype(np.float64).var((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(mean, x.astype(np.float64).mean((0, 2, 3)), rtol=1e-7)


@pytest.mark.parametrize("isa", ISAS)
def test_large_tensors_may_be_overwritten_by_results_and_gradients(isa: str) -> None:
    shape = (16, 6, 150, 150)
    case = BatchNormCase(shape, 2, affine=True, relu=True, residual=False, of_batch=True)
    pool = _kernels.ThreadPool(2)
    expected = case.forward(pool, isa)
    np.testing.assert_allclose(images_of(expected, shape), case.out, rtol=1e-4, atol=1e-4)
    statistics = np.empty((2, shape[1]), np.float32)
    place = lanes_of(case.x)
    _kernels.batch_norm_forward(
        pool, shape, place, case.weight, case.bias, EPSILON, True, None, place, statistics[0], statistics[1], isa=isa
    )
    np.testing.assert_array_equal(place, expected)
    apart = case.backward(pool, isa, expected)
    dy, sums = lanes_of(case.dy), np.empty((2, shape[1]), np.float32)
    _kernels.batch_norm_backward(
        pool, shape, dy, lanes_of(case.x), expected, case.weight, case.mean.astype(np.float32),
        case.inverse_std.astype(np.float32), dy, sums[0], sums[1], isa=isa
    )  # fmt: skip
    np.testing.assert_array_equal(dy, apart[0])


def test_a_channel_without_values_has_no_statistics() -> None:
    empty = np.empty(0, np.float32)
    one = np.empty(1, np.float32)
    with pytest.raises(ValueError, match="a channel has no values"):
        _kernels.batch_norm_forward(
            _kernels.ThreadPool(1), (0, 1, 2, 2), empty, None, None, 1e-5, False, None, empty, one, one
        )
