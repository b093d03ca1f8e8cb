"""Depthwise convolutions of dense weights and their gradients, against those of sparse weights that are all active."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import Array, Shape, aligned, assert_close, images_of, lanes_of, random_array

from sift_onnx.backends.cpu import _kernels

ISAS = _kernels.supported_isas()
PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


class Case:
    """A convolution, its operands, and what either kind of kernels make of them."""

    def __init__(self, shape: Shape, outputs: int, seed: int = 0, **geometry: Any) -> None:
        rng = np.random.default_rng(seed)
        self.shape, self.geometry = shape, {**geometry, "groups": shape[1]}
        self.rows, self.taps = outputs * shape[1], math.prod(geometry["kernel"])
        self.weight, self.bias = random_array(rng, (self.rows, self.taps)), random_array(rng, (self.rows,))
        self.out_shape: Shape = _kernels.DepthwiseConv(self.rows, **self.geometry).output_shape(shape)
        self.x, self.dy = random_array(rng, shape), random_array(rng, self.out_shape)

    def lanes(self, shape: Shape) -> Array:
        return aligned(-(-shape[0] // 16) * 16 * math.prod(shape[1:]))

    def run(self, isa: str, threads: int = 2, bias: Array | None = None) -> tuple[Array, Array, Array]:
        pool, conv = _kernels.ThreadPool(threads), _kernels.DepthwiseConv(self.rows, isa=isa, **self.geometry)
        out, dx, dweight = self.lanes(self.out_shape), self.lanes(self.shape), np.empty_like(self.weight)
        x, dy = lanes_of(self.x), lanes_of(self.dy, idle=0)
        conv.forward(pool, self.shape, x, self.weight, out, bias)
        conv.input_gradient(pool, self.shape, dy, self.weight, dx)
        conv.weight_gradient(pool, self.shape, x, dy, dweight)
        return out, dx, dweight

    def by_sparse_kernels(self, bias: Array | None) -> tuple[Array, Array, Array]:
        pool, weights = _kernels.ThreadPool(1), (self.rows, self.taps, np.arange(self.weight.size))
        conv, gradient = (kind(*weights, **self.geometry) for kind in (_kernels.TrainableConv, _kernels.WeightGradient))
        out, dx, dweight = self.lanes(self.out_shape), self.lanes(self.shape), np.empty(self.weight.size, np.float32)
        x, dy = lanes_of(self.x), lanes_of(self.dy, idle=0)
        conv.update(self.weight.ravel())
        conv.forward(pool, self.shape, x, out, bias)
        conv.input_gradient(pool, self.shape, dy, dx)
        gradient.run(pool, self.shape, x, dy, dweight)
        return out, dx, dweight.reshape(self.weight.shape)


def check(case: Case, isa: str) -> None:
    for bias in (case.bias, None):
        (out, dx, dweight), expected = case.run(isa, bias=bias), case.by_sparse_kernels(bias)
        assert_close(images_of(out, case.out_shape), images_of(expected[0], case.out_shape), case.taps)
        found, wanted = (images_of(part, case.shape, idle_is_zero=True) for part in (dx, expected[1]))
        assert_close(found, wanted, case.taps * case.rows // case.shape[1])
        assert_close(dweight, expected[2], case.out_shape[0] * math.prod(case.out_shape[2:]))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 35), st.integers(1, 3), st.integers(1, 12), st.integers(1, 12)),
    outputs=st.integers(1, 3),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=PAIRS,
    dilation=PAIRS,
    pads=st.tuples(*[st.integers(-1, 4)] * 4),
    seed=st.integers(0, 99),
)
def test_results_are_those_of_sparse_kernels(isa: str, shape: Shape, outputs: int, seed: int, **geometry: Any) -> None:
    check(Case(shape, outputs, seed, **geometry), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_large_tensors_have_the_same_bits_for_any_number_of_threads(isa: str) -> None:
    case = Case((16, 350, 20, 20), 1, kernel=(3, 3), pads=(1, 1, 1, 1))
    first, *others = (case.run(isa, threads, case.bias) for threads in (1, 2, 3))
    check(case, isa)
    for arrays in others:
        for one, other in zip(arrays, first, strict=True):
            np.testing.assert_array_equal(one, other)


def test_an_input_smaller_than_the_window_has_no_gradients() -> None:
    case = Case((3, 2, 2, 2), 2, kernel=(3, 3))
    assert case.out_shape == (3, 4, 0, 0)
    _, dx, dweight = case.run("")
    assert not dx.any()
    assert not dweight.any()


@pytest.mark.parametrize(("rows", "groups"), [(5, 2), (0, 1), (4, 0)])
def test_rows_are_a_multiple_of_the_groups(rows: int, groups: int) -> None:
    with pytest.raises(ValueError, match="group"):
        _kernels.DepthwiseConv(rows, kernel=(1, 1), groups=groups)


def test_arrays_that_do_not_fit_are_refused() -> None:
    conv, pool, one = _kernels.DepthwiseConv(2, kernel=(1, 1), groups=2), _kernels.ThreadPool(1), aligned(32)
    with pytest.raises(ValueError, match="as many channels as groups are needed"):
        conv.forward(pool, (1, 3, 1, 1), aligned(48), one[:2], one)
    with pytest.raises(ValueError, match="weight: the array has 3 values, the shape 2"):
        conv.forward(pool, (1, 2, 1, 1), one, one[:3], one)
