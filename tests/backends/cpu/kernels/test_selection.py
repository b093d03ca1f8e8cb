"""Operators that find places of values, and take values by their places, against numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from kernel_reference import LAYOUTS, aligned, lanes_of

from sift_onnx.backends.cpu import _kernels

ISAS = _kernels.supported_isas()
Shape = tuple[int, int, int, int]
# Rows of fewer values than a vector has, and of more; pixels that fill no block; groups of images that are not full.
SHAPES = [(3, 1, 1, 1), (5, 13, 1, 1), (18, 1003, 1, 1), (2, 7, 3, 43), (17, 5, 1, 6)]


def values_of(shape: Shape, seed: int = 0) -> np.ndarray:
    """Few different ones, among them both zeros, infinity and NaN, which only some rows begin with."""
    rng = np.random.default_rng(seed)
    values = rng.choice(np.array([-1.0, -0.0, 0.0, 0.5, 2.0, math.inf, -math.inf, math.nan], np.float32), shape)
    values[rng.random(shape) < 0.3] = 0.25
    return values


def found(op: Any, x: np.ndarray, layout: str = "planes") -> np.ndarray:
    """The integers that an operator makes."""
    out = np.full(op.output_shape(x.shape), -7, np.int64)
    source = lanes_of(x) if layout == "images16" else x.reshape(-1)
    op.run(_kernels.ThreadPool(2), x.shape, source, out.reshape(-1).view(np.float32))
    return out


def extremes(x: np.ndarray, is_least: bool, takes_last: bool) -> np.ndarray:
    """One value after the other, as onnxruntime compares them: nothing is beyond NaN, and NaN is beyond nothing."""
    compare = (
        (np.less_equal if takes_last else np.less) if is_least else (np.greater_equal if takes_last else np.greater)
    )
    best, places = x[:, :1].copy(), np.zeros_like(x[:, :1], np.int64)
    for channel in range(1, x.shape[1]):
        own = x[:, channel : channel + 1]
        is_further = compare(own, best)
        best, places = np.where(is_further, own, best), np.where(is_further, channel, places)
    return places


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_least", [False, True])
@pytest.mark.parametrize("takes_last", [False, True])
def test_extremes_of_channels(isa: str, layout: str, is_least: bool, takes_last: bool) -> None:
    for shape in SHAPES:
        x = values_of(shape)
        op = _kernels.ArgExtreme(is_least=is_least, takes_last=takes_last, layout=layout, isa=isa)
        np.testing.assert_array_equal(found(op, x, layout), extremes(x, is_least, takes_last))


def ranked(x: np.ndarray, k: int, is_least: bool) -> np.ndarray:
    """A stable sort leaves the first of equal values first; numpy has NaN last, which is first of the largest."""
    values = x if is_least else np.where(np.isnan(x), -math.inf, -x)
    if not is_least:  # infinity comes behind NaN
        values = np.where(np.isposinf(x), np.finfo(np.float32).min, values)
    return np.argsort(values, axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("is_least", [False, True])
@pytest.mark.parametrize("k", [1, 2, 5, 40, 700, 1003])
def test_the_first_k_channels(isa: str, is_least: bool, k: int) -> None:
    op = _kernels.TopK(k, is_least=is_least, isa=isa)
    rng = np.random.default_rng(1)
    any_order = rng.standard_normal((4, 1003, 1, 1), dtype=np.float32)
    rising = np.sort(any_order, axis=1)
    for x in (any_order, rising, -rising, values_of((4, 1003, 1, 1)), values_of((2, 1003, 1, 3))):
        np.testing.assert_array_equal(found(op, x), ranked(x, k, is_least))


def test_rows_that_begin_with_nothing_but_nan() -> None:
    x = np.full((1, 500, 1, 1), math.nan, np.float32)
    x[0, [120, 300, 499], 0, 0] = [-math.inf, 5, 1]
    assert found(_kernels.TopK(4), x).reshape(-1).tolist() == [0, 1, 2, 3]
    assert found(_kernels.TopK(4, is_least=True), x).reshape(-1).tolist() == [120, 499, 300, 0]


def test_values_are_taken_by_their_places() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((3, 50, 2, 5), dtype=np.float32)
    indices = rng.integers(-50, 50, (3, 700, 2, 5))
    op = _kernels.GatherElements(700)
    out = aligned(indices.size)
    op.run(_kernels.ThreadPool(2), x.shape, x.reshape(-1), out, indices.reshape(-1).view(np.float32))
    np.testing.assert_array_equal(out.reshape(indices.shape), np.take_along_axis(x, indices, axis=1))
    same = np.ascontiguousarray(indices[..., :1, :1])
    op_of_rows = _kernels.GatherElements(700, has_index_for_all=True)
    op_of_rows.run(_kernels.ThreadPool(2), x.shape, x.reshape(-1), out, same.reshape(-1).view(np.float32))
    np.testing.assert_array_equal(out.reshape(indices.shape), np.take_along_axis(x, same, axis=1))
    indices[1, 3, 1, 4] = 50
    with pytest.raises(ValueError, match="index 50 of an axis of 50 values"):
        op.run(_kernels.ThreadPool(2), x.shape, x.reshape(-1), out, indices.reshape(-1).view(np.float32))
    with pytest.raises(ValueError, match="there are no indices"):
        op.run(_kernels.ThreadPool(1), x.shape, x.reshape(-1), out)


def test_a_sequence_writes_integers_to_an_array_of_the_caller() -> None:
    x = values_of((7, 30, 1, 1))
    indices, values = np.empty((7, 3), np.int64), np.empty((7, 3), np.float32)
    steps = [
        (_kernels.TopK(3), x.shape, (0, 0), (None, None, None), (1, 0)),
        (_kernels.GatherElements(3), x.shape, (0, 0), ((1, 0), None, None), (2, 0)),
        (_kernels.CastIntegers(), (7, 3, 1, 1), (1, 0), (None, None, None), (-1, 0)),
    ]
    sequence = _kernels.Sequence(steps, 21, [x.size, 2 * indices.size, values.size])
    sequence.run(_kernels.ThreadPool(1), _kernels.Workspace(), [x, indices, values])
    np.testing.assert_array_equal(indices, ranked(x, 3, False)[..., 0, 0])
    np.testing.assert_array_equal(values, np.take_along_axis(x[..., 0, 0], indices, axis=1))
    with pytest.raises(ValueError, match="array 1 has 40 words of four bytes, not 42"):
        sequence.run(_kernels.ThreadPool(1), _kernels.Workspace(), [x, np.empty(20, np.int64), values])


def test_integers_as_floats() -> None:
    integers = np.array([0, -1, 2**24 + 1, 2**40, -(2**63)], np.int64)
    out = np.empty(5, np.float32)
    _kernels.CastIntegers().run(_kernels.ThreadPool(1), (1, 5, 1, 1), integers.view(np.float32), out)
    np.testing.assert_array_equal(out, integers.astype(np.float32))


@pytest.mark.parametrize("make", [
    lambda: _kernels.TopK(0), lambda: _kernels.GatherElements(-1),
    lambda: _kernels.TopK(3).output_shape((1, 2, 1, 1)), lambda: _kernels.ArgExtreme().output_shape((1, 0, 1, 1)),
    lambda: _kernels.ArgExtreme().output_shape((1, 2**31, 1, 1)),
])  # fmt: skip
def test_what_has_no_places_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match=r"top k|arg extreme|gather elements"):
        make()
