"""Convolutions whose weights change: the forward pass and the input's gradient, against numpy in double precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from conv_layers import Layer
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_reference import LANES, aligned, assert_close, conv, random_array, random_sparse, to_layout, windows

from sift_onnx.backends.cpu import _kernels

ISAS = _kernels.supported_isas()
POOLS = [_kernels.ThreadPool(threads) for threads in (1, 2, 3)]


def weights_of(layer: Layer, rng: np.random.Generator) -> np.ndarray:
    found = random_sparse(rng, layer.weight_shape, layer.density if rng.random() < layer.density else -1)
    # A layer without an active weight is refused, by a test of its own.
    return found if found.any() else np.ones_like(found)


def operator(layer: Layer, weights: np.ndarray, places: np.ndarray | None = None) -> _kernels.TrainableConv:
    return layer.operator(_kernels.TrainableConv, np.flatnonzero(weights), places)


def from_lanes(lanes: np.ndarray, shape: tuple[int, int, int, int]) -> np.ndarray:
    n, c, h, w = shape
    return lanes.reshape(-1, c, h, w, LANES).transpose(0, 4, 1, 2, 3).reshape(-1, c, h, w)[:n]


def lanes_for(shape: tuple[int, int, int, int]) -> np.ndarray:
    return aligned(-(-shape[0] // LANES) * LANES * math.prod(shape[1:]))


def forward(
    op: _kernels.TrainableConv, x: np.ndarray, bias: np.ndarray | None = None, pool: _kernels.ThreadPool = POOLS[1]
) -> np.ndarray:
    out = lanes_for(op.output_shape(x.shape))
    op.forward(pool, x.shape, to_layout(pool, x, "images16"), out, bias)
    return from_lanes(out, op.output_shape(x.shape))


def input_gradient(
    op: _kernels.TrainableConv,
    shape: tuple[int, int, int, int],
    dy: np.ndarray,
    pool: _kernels.ThreadPool = POOLS[1],
) -> np.ndarray:
    dx = lanes_for(shape)
    op.input_gradient(pool, shape, to_layout(pool, dy, "images16"), dx)
    return from_lanes(dx, shape)


def expected_gradient(layer: Layer, weights: np.ndarray, shape: tuple[int, int, int, int], dy: np.ndarray) -> Any:
    """The transpose of what the forward pass reads: each pixel gets what the windows that hold it send back."""
    n, c, h, w = shape
    top, left, bottom, right = layer.pads
    padded = np.zeros((n, c, h + max(top, 0) + max(bottom, 0), w + max(left, 0) + max(right, 0)))
    by_group = dy.astype(np.float64).reshape(n, layer.groups, -1, *dy.shape[2:])
    grouped = weights.astype(np.float64).reshape(layer.groups, -1, *weights.shape[1:])
    for i in range(layer.kernel[0]):
        for j in range(layer.kernel[1]):
            sent = np.einsum("ngohw,goc->ngchw", by_group, grouped[..., i, j]).reshape(n, c, *dy.shape[2:])
            y = i * layer.dilation[0] + max(-top, 0)
            x = j * layer.dilation[1] + max(-left, 0)
            padded[
                :,
                :,
                y : y + (dy.shape[2] - 1) * layer.stride[0] + 1 : layer.stride[0],
                x : x + (dy.shape[3] - 1) * layer.stride[1] + 1 : layer.stride[1],
            ] += sent
    return padded[:, :, max(top, 0) : max(top, 0) + h, max(left, 0) : max(left, 0) + w]


def cropped(x: np.ndarray, pads: tuple[int, int, int, int]) -> tuple[np.ndarray, tuple[int, int, int, int]]:
    """What negative pads leave of an input, and the other pads."""
    top, left, bottom, right = pads
    h, w = x.shape[2:]
    kept = x[:, :, max(-top, 0) : h - max(-bottom, 0), max(-left, 0) : w - max(-right, 0)]
    return kept, (max(top, 0), max(left, 0), max(bottom, 0), max(right, 0))


def check(layer: Layer, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = weights_of(layer, rng)
    active = np.flatnonzero(weights)
    places = rng.permutation(active.size)
    op = operator(layer, weights, places)
    assert op.nnz == active.size
    for images in (layer.images, 3):
        values = random_array(rng, (active.size,))
        op.update(values)
        weights.flat[active] = values[places]
        x = random_array(rng, layer.input_shape(images))
        bias = random_array(rng, (len(weights),)) if images == 3 else None
        shape = op.output_shape(x.shape)
        if math.prod(shape) == 0:
            assert not input_gradient(op, x.shape, np.zeros(shape, np.float32)).any()
            continue
        kept, pads = cropped(x, layer.pads)
        expected = conv(kept, weights, bias, **layer.geometry | {"pads": pads})
        assert expected.shape == shape
        assert_close(forward(op, x, bias), expected, weights[0].size)
        dy = random_array(rng, shape)
        expected = expected_gradient(layer, weights, x.shape, dy)
        assert_close(input_gradient(op, x.shape, dy), expected, weights[:, 0].size)


def pairs(*choices: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.sampled_from(choices), st.sampled_from(choices))


PADS = st.tuples(*[st.sampled_from((0, 1, 2, 3, -1))] * 4)


@settings(max_examples=60, deadline=None)
@given(
    layer=st.builds(
        Layer,
        channels=st.sampled_from((1, 3, 9)),
        rows=st.sampled_from((1, 5, 30)),
        size=pairs(2, 5, 8, 13),
        kernel=pairs(1, 2, 3, 5),
        stride=pairs(1, 1, 2, 3),
        dilation=pairs(1, 1, 2, 3),
        pads=PADS,
        groups=st.sampled_from((1, 1, 2)),
        density=st.sampled_from((0.05, 0.3, 0.6, 1.0)),
        images=st.sampled_from((1, 16, 17, 33)),
        isa=st.sampled_from(("", *ISAS)),
    ),
    seed=st.integers(0, 99),
)
@example(Layer(size=(8, 9), stride=(2, 2), kernel=(1, 1), pads=(0, 0, 0, 0)), 0)
@example(Layer(size=(8, 8), stride=(3, 3), kernel=(2, 2), pads=(0, 0, 0, 0)), 0)
@example(Layer(size=(2, 2), kernel=(5, 5), pads=(0, 0, 0, 0)), 0)
@example(Layer(size=(9, 9), kernel=(5, 5), stride=(4, 4), dilation=(2, 2), pads=(4, 4, 4, 4)), 1)
def test_both_directions_compute_what_the_formulas_say(layer: Layer, seed: int) -> None:
    check(layer, seed)


@pytest.mark.parametrize("density", [0.1, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("kernel", "stride"), [((1, 1), (1, 1)), ((3, 3), (1, 1)), ((3, 3), (2, 2)), ((1, 1), (2, 2))])
def test_every_form_of_weights_takes_new_values(
    isa: str, density: float, kernel: tuple[int, int], stride: tuple[int, int]
) -> None:
    """Rows and columns of a size that generated code, sorted lists, pairs and dense rows are all chosen for.

    The second shape needs other tiles: lists are packed from those of the first one, which have other values.
    """
    rng = np.random.default_rng(3)
    weights = random_sparse(rng, (60, 45, *kernel), density)
    layer = Layer(channels=45, rows=60, kernel=kernel, stride=stride, isa=isa)
    op = operator(layer, weights)
    for images, size in ((33, (9, 9)), (3, (5, 21))):
        x = random_array(rng, (images, 45, *size))
        dy = random_array(rng, op.output_shape(x.shape))
        weights[weights != 0] = random_array(rng, (op.nnz,))
        op.update(weights[weights != 0])
        assert_close(forward(op, x), conv(x, weights, **layer.geometry), weights[0].size)
        assert_close(input_gradient(op, x.shape, dy), expected_gradient(layer, weights, x.shape, dy), 60 * 9)


def test_the_weight_gradient_is_that_of_an_operator_by_itself() -> None:
    rng = np.random.default_rng(9)
    layer = Layer(channels=30, rows=40, size=(7, 7), stride=(2, 2))
    weights = random_sparse(rng, layer.weight_shape, 0.2)
    indices = np.flatnonzero(weights)
    places = rng.permutation(indices.size)
    op = operator(layer, weights, places)
    shape = layer.input_shape(20)
    x = to_layout(POOLS[1], random_array(rng, shape), "images16")
    dy = to_layout(POOLS[1], random_array(rng, op.output_shape(shape)), "images16")
    found = []
    for gradient in (op.weight_gradient(), layer.operator(_kernels.WeightGradient, indices, places)):
        found.append(np.empty(indices.size, np.float32))
        gradient.run(POOLS[1], shape, x, dy, found[-1])
    assert found[0].tobytes() == found[1].tobytes()


def test_kernels_too_large_for_a_panel_are_added_up() -> None:
    check(Layer(channels=1, rows=2, size=(45, 44), kernel=(40, 41), stride=(2, 1), pads=(3, 2, 1, 0), images=3), 5)


@pytest.mark.parametrize("layer", [Layer(40, 70, (9, 9)), Layer(40, 70, (9, 9), stride=(2, 2)), Layer(90, 70, (1, 1))])
def test_any_number_of_threads_writes_the_same_bits(layer: Layer) -> None:
    rng = np.random.default_rng(4)
    weights = random_sparse(rng, (70, layer.channels, 3, 3), 0.15)
    x = random_array(rng, layer.input_shape(40))
    results = []
    for pool in POOLS:
        op = operator(layer, weights)
        op.update(weights[weights != 0])
        dy = random_array(np.random.default_rng(5), op.output_shape(x.shape))
        results.append((forward(op, x, pool=pool).tobytes(), input_gradient(op, x.shape, dy, pool).tobytes()))
    assert results[0] == results[1] == results[2]


def test_idle_lanes_of_a_gradient_stay_zero() -> None:
    layer = Layer(stride=(2, 1))
    weights = random_sparse(np.random.default_rng(6), (7, 5, 3, 3), 0.5)
    op = operator(layer, weights)
    op.update(weights[weights != 0])
    shape = layer.input_shape(3)
    dy = random_array(np.random.default_rng(7), op.output_shape(shape))
    dx = lanes_for(shape)
    op.input_gradient(POOLS[0], shape, to_layout(POOLS[0], dy, "images16"), dx)
    assert not dx.reshape(-1, LANES)[:, 3:].any()


def test_a_shape_packed_alike_shares_a_packing() -> None:
    weights = random_sparse(np.random.default_rng(8), (64, 64, 3, 3), 0.1)
    layer = Layer(64, 64, (14, 14))
    op = operator(layer, weights)
    op.update(weights[weights != 0])
    op.describe(layer.input_shape(48), 1)
    nbytes = op.nbytes
    assert op.describe(layer.input_shape(33), 1)["forward"] == op.describe(layer.input_shape(48), 1)["forward"]
    assert op.nbytes == nbytes


def test_values_of_any_bits_reach_their_places() -> None:
    """Zeros stay active, and infinities and NaN meet only the operands of their own taps."""
    op = _kernels.TrainableConv(2, 3, np.array([0, 2, 4]))
    x = np.ones((1, 3, 1, 1), np.float32)
    op.update(np.array([0.0, 1e-42, np.nan], np.float32))
    assert forward(op, x).ravel()[0] == np.float32(1e-42)
    assert np.isnan(forward(op, x).ravel()[1])
    op.update(np.array([2.0, 3.0, 4.0], np.float32))
    assert forward(op, x).ravel().tolist() == [5.0, 4.0]


def refused(message: str, indices: list[int], places: list[int] | None = None, **options: Any) -> None:
    of_places = None if places is None else np.array(places, np.int64)
    with pytest.raises(ValueError, match=message):
        _kernels.TrainableConv(4, 18, np.array(indices, np.int64), of_places, kernel=(3, 3), **options)


def test_what_does_not_fit_is_refused() -> None:
    refused("no weight is active", [])
    refused("ascend strictly", [3, 3])
    refused("ascend strictly", [72])
    refused("as many places", [1, 2], [0])
    refused("each of them once", [1, 2], [0, 0])
    refused("each of them once", [1, 2], [0, 2])
    refused("multiple of groups", [1, 2], groups=3)
    op = _kernels.TrainableConv(4, 18, np.array([1, 2]), kernel=(3, 3))
    x = random_array(np.random.default_rng(0), (1, 2, 3, 3))
    with pytest.raises(ValueError, match="update must set"):
        forward(op, x)
    with pytest.raises(ValueError, match="as many values"):
        op.update(np.ones(3, np.float32))
    op.update(np.ones(2, np.float32))
    with pytest.raises(ValueError, match="bias: the array has 3 values, the shape 4"):
        forward(op, x, np.ones(3, np.float32))


def test_the_reference_agrees_with_a_sum_over_windows() -> None:
    """<conv(x), dy> = <x, gradient(dy)>, for the formula that gradients are checked against."""
    layer = Layer(stride=(2, 3), dilation=(2, 1), pads=(1, 2, 0, 1))
    rng = np.random.default_rng(9)
    weights = random_array(rng, (7, 5, 3, 3))
    x = random_array(rng, layer.input_shape(2))
    taps = windows(x, layer.kernel, layer.stride, layer.dilation, layer.pads, 0.0)
    y = np.einsum("ijnchw,ocij->nohw", taps, weights.astype(np.float64))
    dy = random_array(rng, y.shape)
    assert np.vdot(y, dy) == pytest.approx(np.vdot(x, expected_gradient(layer, weights, x.shape, dy)))
