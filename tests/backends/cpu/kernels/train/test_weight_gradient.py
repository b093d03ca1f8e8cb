"""Gradients of active weights, against numpy in double precision."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conv_layers import Layer
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import Array, lanes_of

from sift_onnx.backends.cpu import _kernels

ISAS = _kernels.supported_isas()
POOLS = [_kernels.ThreadPool(threads) for threads in (1, 2, 3)]


def indices_of(layer: Layer, rng: np.random.Generator) -> Array:
    mask = (rng.random(layer.weight_shape) < layer.density).reshape(layer.rows * layer.groups, -1)
    mask[rng.random(len(mask)) < 0.2] = False
    return np.flatnonzero(mask)


def dense_gradient(layer: Layer, x: Array, dy: Array) -> Array:
    """The gradient of all weights, [rows][channels][kh][kw]."""
    top, left, bottom, right = layer.pads
    grown = [(max(before, 0), max(after, 0)) for before, after in ((top, bottom), (left, right))]
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *grown))
    padded = padded[:, :, max(-top, 0) : padded.shape[2] + min(bottom, 0)]
    padded = padded[:, :, :, max(-left, 0) : padded.shape[3] + min(right, 0)]
    result = np.zeros(layer.weight_shape)
    h, w = dy.shape[2:]
    if h * w == 0:
        return result
    for ky, kx in itertools.product(*map(range, layer.kernel)):
        rows = slice(ky * layer.dilation[0], None, layer.stride[0])
        columns = slice(kx * layer.dilation[1], None, layer.stride[1])
        seen = padded[:, :, rows, columns][:, :, :h, :w].reshape(layer.images, layer.groups, layer.channels, h, w)
        split = dy.astype(np.float64).reshape(layer.images, layer.groups, layer.rows, h, w)
        tap = np.einsum("ngohw,ngchw->goc", split, seen)
        result[:, :, ky, kx] = tap.reshape(-1, layer.channels)
    return result


def output_shape(layer: Layer) -> tuple[int, int, int, int]:
    top, left, bottom, right = layer.pads
    spans = (
        layer.size[0] + top + bottom - (layer.kernel[0] - 1) * layer.dilation[0] - 1,
        layer.size[1] + left + right - (layer.kernel[1] - 1) * layer.dilation[1] - 1,
    )
    h, w = (0 if span < 0 else span // stride + 1 for span, stride in zip(spans, layer.stride, strict=True))
    return (layer.images, layer.rows * layer.groups, h, w)


def operator(layer: Layer, indices: Array, places: Array | None = None) -> _kernels.WeightGradient:
    return layer.operator(_kernels.WeightGradient, indices, places)


def random_tensors(layer: Layer, rng: np.random.Generator) -> tuple[Array, Array]:
    """The input, and the output's gradient."""
    shapes = layer.shape, output_shape(layer)
    x, dy = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return x, dy


def check(layer: Layer, seed: int) -> None:
    rng = np.random.default_rng(seed)
    indices = indices_of(layer, rng)
    x, dy = random_tensors(layer, rng)
    places = rng.permutation(len(indices))
    before = rng.standard_normal(len(indices)).astype(np.float32)
    expected = dense_gradient(layer, x, dy).ravel()[indices]
    tensors = lanes_of(x, 3e30), lanes_of(dy, 0.0)
    bound = 1e-5 * max(1, dy.size // max(1, dy.shape[1])) ** 0.5
    written = []
    for pool in POOLS:
        values = np.full(len(indices), np.nan, np.float32)
        operator(layer, indices).run(pool, layer.shape, *tensors, values)
        written.append(values.tobytes())
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=bound)
    assert len(set(written)) == 1
    added = before.copy()
    operator(layer, indices, places).run(POOLS[1], layer.shape, *tensors, added, accumulate=True)
    np.testing.assert_allclose(added[places] - before[places], expected, rtol=1e-4, atol=2 * bound)


# Of each kind of tile.
CASES = (
    (Layer(channels=40, rows=300, kernel=(1, 1), pads=(0, 0, 0, 0), size=(1, 1), images=2100), 1),
    (Layer(channels=70, rows=40, density=1.0), 2),
    (Layer(channels=3, rows=40, size=(70, 65), images=3), 3),
    (Layer(channels=2, kernel=(7, 7), stride=(2, 2), pads=(3, 3, 3, 3), size=(30, 31), images=3), 4),
    (Layer(channels=6, kernel=(3, 3), dilation=(9, 9), pads=(9, 9, 9, 9), size=(14, 14), images=3), 5),
    (Layer(channels=1, rows=1, groups=60), 6),
)

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
def test_gradients_are_those_of_double_precision_for_any_number_of_threads(layer: Layer, seed: int) -> None:
    check(layer, seed)


@pytest.mark.parametrize(("layer", "seed"), CASES)
def test_gradients_of_every_kind_of_tile_are_those_of_double_precision(layer: Layer, seed: int) -> None:
    check(layer, seed)


_WITHOUT_CODE = """
import test_weight_gradient as tests
assert not tests._kernels.may_execute_code()
for case in tests.CASES:
    tests.check(*case)
"""


@pytest.mark.skipif(not _kernels.may_execute_code(), reason="lists are what the other tests run")
def test_sift_jit_0_sums_gradients_from_lists() -> None:
    environment = {
        **os.environ,
        "SIFT_JIT": "0",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    subprocess.run([sys.executable, "-c", _WITHOUT_CODE], env=environment, check=True)


@pytest.mark.parametrize("isa", ISAS)
def test_a_single_weight_has_its_gradient(isa: str) -> None:
    layer = Layer(isa=isa)
    rng = np.random.default_rng(0)
    x, dy = random_tensors(layer, rng)
    values = np.zeros(1, np.float32)
    operator(layer, np.array([37])).run(POOLS[0], layer.shape, lanes_of(x, 1.0), lanes_of(dy, 0.0), values)
    np.testing.assert_allclose(values, dense_gradient(layer, x, dy).ravel()[[37]], rtol=1e-4, atol=1e-3)


def test_other_shapes_come_and_go() -> None:
    rng = np.random.default_rng(0)
    indices = indices_of(Layer(), rng)
    gradient = operator(Layer(), indices)
    for height in (6, 3, 9, 5, 8, 6):
        layer = Layer(size=(height, 7), images=height)
        x, dy = random_tensors(layer, rng)
        values = np.empty(len(indices), np.float32)
        gradient.run(POOLS[0], layer.shape, lanes_of(x, 1.0), lanes_of(dy, 0.0), values)
        np.testing.assert_allclose(values, dense_gradient(layer, x, dy).ravel()[indices], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"indices": [3, 2]}, "ascend"),
        ({"indices": [0, 99]}, "ascend"),
        ({"indices": [0], "columns": 0}, "ascend"),
        ({"places": [0, 0]}, "places"),
        ({"places": [0]}, "as many places"),
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
