"""Gradients of active weights, against numpy in double precision."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_reference import LANES, aligned

from sift_onnx.backends.cpu import _kernels

Array = np.ndarray[Any, Any]
ISAS = _kernels.supported_isas()
POOLS = [_kernels.ThreadPool(threads) for threads in (1, 2, 3)]


@dataclass(frozen=True)
class Layer:
    channels: int = 5  # of a group
    rows: int = 7
    size: tuple[int, int] = (6, 7)
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    groups: int = 1
    density: float = 0.3
    images: int = 18
    isa: str = ""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (self.images, self.channels * self.groups, *self.size)

    def operator(self, indices: Array, places: Array | None = None) -> _kernels.WeightGradient:
        return _kernels.WeightGradient(
            self.rows * self.groups,
            self.channels * self.kernel[0] * self.kernel[1],
            indices,
            places,
            kernel=self.kernel,
            stride=self.stride,
            dilation=self.dilation,
            pads=self.pads,
            groups=self.groups,
            isa=self.isa,
        )

    def indices(self, rng: np.random.Generator) -> Array:
        mask = rng.random((self.rows * self.groups, self.channels * self.kernel[0] * self.kernel[1])) < self.density
        mask[rng.random(len(mask)) < 0.2] = False
        return np.flatnonzero(mask)

    def dense(self, x: Array, dy: Array) -> Array:
        """The gradient of all weights, [rows][channels][kh][kw]."""
        top, left, bottom, right = self.pads
        grown = [(max(before, 0), max(after, 0)) for before, after in ((top, bottom), (left, right))]
        padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *grown))
        padded = padded[:, :, max(-top, 0) : padded.shape[2] + min(bottom, 0)]
        padded = padded[:, :, :, max(-left, 0) : padded.shape[3] + min(right, 0)]
        result = np.zeros((self.rows * self.groups, self.channels, *self.kernel))
        h, w = dy.shape[2:]
        if h * w == 0:
            return result
        for ky, kx in itertools.product(*map(range, self.kernel)):
            rows = slice(ky * self.dilation[0], None, self.stride[0])
            columns = slice(kx * self.dilation[1], None, self.stride[1])
            seen = padded[:, :, rows, columns][:, :, :h, :w].reshape(self.images, self.groups, self.channels, h, w)
            split = dy.astype(np.float64).reshape(self.images, self.groups, self.rows, h, w)
            tap = np.einsum("ngohw,ngchw->goc", split, seen)
            result[:, :, ky, kx] = tap.reshape(-1, self.channels)
        return result

    def output(self) -> tuple[int, int, int, int]:
        top, left, bottom, right = self.pads
        spans = (
            self.size[0] + top + bottom - (self.kernel[0] - 1) * self.dilation[0] - 1,
            self.size[1] + left + right - (self.kernel[1] - 1) * self.dilation[1] - 1,
        )
        h, w = (0 if span < 0 else span // stride + 1 for span, stride in zip(spans, self.stride, strict=True))
        return (self.images, self.rows * self.groups, h, w)


def lanes_of(x: Array, idle: float) -> Array:
    """x in images16, with `idle` in the lanes beyond the last image."""
    n, c, h, w = x.shape
    blocks = -(-n // LANES)
    padded = np.full((blocks * LANES, c, h, w), idle, np.float32)
    padded[:n] = x
    result = aligned(padded.size)
    result[:] = padded.reshape(blocks, LANES, c, h, w).transpose(0, 2, 3, 4, 1).ravel()
    return result


def check(layer: Layer, seed: int) -> None:
    rng = np.random.default_rng(seed)
    indices = layer.indices(rng)
    x = rng.standard_normal(layer.shape).astype(np.float32)
    dy = rng.standard_normal(layer.output()).astype(np.float32)
    places = rng.permutation(len(indices))
    before = rng.standard_normal(len(indices)).astype(np.float32)
    expected = layer.dense(x, dy).ravel()[indices]
    tensors = lanes_of(x, 3e30), lanes_of(dy, 0.0)
    bound = 1e-5 * max(1, dy.size // max(1, dy.shape[1])) ** 0.5
    written = []
    for pool in POOLS:
        values = np.full(len(indices), np.nan, np.float32)
        layer.operator(indices).run(pool, layer.shape, *tensors, values)
        written.append(values.tobytes())
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=bound)
    assert len(set(written)) == 1
    added = before.copy()
    layer.operator(indices, places).run(POOLS[1], layer.shape, *tensors, added, accumulate=True)
    np.testing.assert_allclose(added[places] - before[places], expected, rtol=1e-4, atol=2 * bound)


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=150, deadline=None)
@given(
    layer=st.builds(
        Layer,
        channels=st.integers(1, 9),
        rows=st.integers(1, 20),
        size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
        kernel=pairs,
        stride=pairs,
        dilation=pairs,
        pads=st.tuples(*[st.integers(-1, 3)] * 4),
        groups=st.integers(1, 3),
        density=st.sampled_from((0.0, 0.05, 0.3, 1.0)),
        images=st.sampled_from((1, 15, 16, 33)),
        isa=st.sampled_from(ISAS),
    ),
    seed=st.integers(0, 2**31),
)
@example(Layer(channels=40, rows=300, kernel=(1, 1), pads=(0, 0, 0, 0), size=(1, 1), images=2100), 1)
@example(Layer(channels=70, rows=40, density=1.0), 2)
@example(Layer(channels=3, rows=40, size=(70, 65), images=3), 3)
@example(Layer(channels=2, kernel=(7, 7), stride=(2, 2), pads=(3, 3, 3, 3), size=(30, 31), images=3), 4)
@example(Layer(channels=6, kernel=(3, 3), dilation=(9, 9), pads=(9, 9, 9, 9), size=(14, 14), images=3), 5)
@example(Layer(channels=1, rows=1, groups=60), 6)
def test_gradients_are_those_of_double_precision_for_any_number_of_threads(layer: Layer, seed: int) -> None:
    check(layer, seed)


@pytest.mark.parametrize("isa", ISAS)
def test_a_single_weight_has_its_gradient(isa: str) -> None:
    layer = Layer(isa=isa)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(layer.shape).astype(np.float32)
    dy = rng.standard_normal(layer.output()).astype(np.float32)
    values = np.zeros(1, np.float32)
    layer.operator(np.array([37])).run(POOLS[0], layer.shape, lanes_of(x, 1.0), lanes_of(dy, 0.0), values)
    np.testing.assert_allclose(values, layer.dense(x, dy).ravel()[[37]], rtol=1e-4, atol=1e-3)


def test_other_shapes_come_and_go() -> None:
    rng = np.random.default_rng(0)
    indices = Layer().indices(rng)
    operator = Layer().operator(indices)
    for height in (6, 3, 9, 5, 8, 6):
        layer = Layer(size=(height, 7), images=height)
        x = rng.standard_normal(layer.shape).astype(np.float32)
        dy = rng.standard_normal(layer.output()).astype(np.float32)
        values = np.empty(len(indices), np.float32)
        operator.run(POOLS[0], layer.shape, lanes_of(x, 1.0), lanes_of(dy, 0.0), values)
        np.testing.assert_allclose(values, layer.dense(x, dy).ravel()[indices], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"indices": [3, 2]}, "ascend"),
        ({"indices": [0, 99]}, "ascend"),
        ({"indices": [0], "columns": 0}, "ascend"),
        ({"places": [0, 0]}, "places"),
        ({"places": [0]}, "one place per index"),
        ({"groups": 2}, "groups"),
        ({"kernel": (2, 2)}, "taps"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], said: str) -> None:
    arrays = {key: np.array(arguments.pop(key, [0, 5])) for key in ("indices", "places")} | arguments
    if "places" not in arguments and len(arrays["places"]) == 2 and arrays["places"].tolist() == [0, 5]:
        arrays["places"] = None
    with pytest.raises(ValueError, match=said):
        _kernels.WeightGradient(3, arrays.pop("columns", 5), **arrays)
