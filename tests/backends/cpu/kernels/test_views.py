"""Operators on values where they lie: products of two of them, arithmetic, and softmax, against numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import LAYOUTS, activate, aligned, images_of, lanes_of, random_array

from sift_onnx.backends.cpu import _kernels

ISAS = _kernels.supported_isas()
Shape = tuple[int, int, int, int]
Sizes = tuple[int, ...]


class Viewed:
    """A tensor, and a view of it: of every image in lanes, of all of it in planes."""

    def __init__(self, rng: np.random.Generator, sizes: Sizes, layout: str, images: int, repeated: Sizes = ()) -> None:
        """Axes lie in a random order, with a gap in front; those of ``repeated`` have one position in memory."""
        self.strides = [0] * len(sizes)
        total = 1
        for axis in rng.permutation(len(sizes)):
            if axis not in repeated:
                self.strides[axis] = total
                total *= sizes[axis]
        self.first = int(rng.integers(3))
        self.images = images if layout == "images16" else 1
        self.shape: Shape = (self.images, total + self.first + 1, 1, 1)
        x = random_array(rng, self.shape)
        self.floats = lanes_of(x) if layout == "images16" else x.reshape(-1)
        # [images, *sizes]
        places = self.first + sum(
            (np.arange(size) * stride).reshape(-1, *(1,) * (len(sizes) - 1 - axis))
            for axis, (size, stride) in enumerate(zip(sizes, self.strides, strict=True))
        )
        self.values = x.reshape(self.images, -1)[:, places]

    @property
    def spec(self) -> tuple[Shape, int, list[int]]:
        return self.shape, self.first, self.strides


def ran(op: Any, left: Viewed, right: Viewed | None, out_shape: Sizes) -> np.ndarray:
    """The result, [images, *out_shape]."""
    shape = op.output_shape(left.shape)
    assert shape[:2] == (left.images, math.prod(out_shape))
    lanes = -(-left.images // 16) * 16 if op.output_layout == "images16" else 1
    out = aligned(lanes * shape[1])
    op.run(_kernels.ThreadPool(2), left.shape, left.floats, out, None if right is None else right.floats)
    if op.output_layout == "planes":
        return out.reshape(1, *out_shape)
    assert np.isfinite(out).all(), "lanes past the last image hold finite values"
    return images_of(out, shape).reshape(left.images, *out_shape)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=6, deadline=None)
@given(
    batch=st.sampled_from([(), (2,), (3, 2)]),
    rows=st.integers(1, 40), columns=st.sampled_from([1, 5, 16, 17, 48, 70]), depth=st.sampled_from([1, 7, 129, 300]),
    repeats=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_a_product_of_two_views(
    isa: str, layout: str, batch: Sizes, rows: int, columns: int, depth: int, repeats: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    images = 19 if layout == "images16" else 1
    left = Viewed(rng, (*batch, rows, depth), layout, images)
    right = Viewed(rng, (*batch, columns, depth), layout, images, (0,) if batch and repeats else ())
    op = _kernels.BatchedMatmul(
        batch=batch, rows=rows, columns=columns, depth=depth, left=left.spec, right=right.spec, scale=0.5,
        layout=layout, isa=isa,
    )  # fmt: skip
    expected = 0.5 * left.values.astype(np.float64) @ right.values.astype(np.float64).swapaxes(-1, -2)
    found = ran(op, left, right, (*batch, rows, columns))
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6 * max(depth, 4))


def test_a_product_has_the_same_bits_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(3)
    left, right = Viewed(rng, (300, 200), "planes", 1), Viewed(rng, (90, 200), "planes", 1)
    op = _kernels.BatchedMatmul(batch=(), rows=300, columns=90, depth=200, left=left.spec, right=right.spec)
    outs = [np.empty(27000, np.float32) for _ in range(3)]
    for threads, out in zip((1, 2, 5), outs, strict=True):
        op.run(_kernels.ThreadPool(threads), left.shape, left.floats, out, right.floats)
    assert all((out == outs[0]).all() for out in outs)


def test_a_product_over_nothing_is_zero() -> None:
    spec = ((1, 4, 1, 1), 0, [1, 0])
    op = _kernels.BatchedMatmul(batch=(), rows=2, columns=3, depth=0, left=spec, right=spec)
    out, x = np.full(6, np.nan, np.float32), np.ones(4, np.float32)
    op.run(_kernels.ThreadPool(1), (1, 4, 1, 1), x, out, x)
    assert not out.any()


_OPERATIONS: dict[str, Any] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "maximum": np.maximum,
    "minimum": np.minimum, "less": np.less,
    "less_or_equal": np.less_equal, "greater": np.greater, "greater_or_equal": np.greater_equal, "equal": np.equal,
    "where_true": lambda x, y: np.where(y != 0, x, np.float32(7)),
    "where_false": lambda x, y: np.where(y != 0, np.float32(7), x),
}  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=8, deadline=None)
@given(
    kind=st.sampled_from(["first", *_OPERATIONS]), sizes=st.lists(st.integers(1, 5), max_size=3), large=st.booleans(),
    repeated=st.integers(0, 3), activation=st.sampled_from([("none", 0.0, 0.0), ("clip", 0.0, math.inf)]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_arithmetic_of_views(
    isa: str, layout: str, kind: str, sizes: list[int], large: bool, repeated: int,
    activation: tuple[str, float, float], seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    sizes = [*sizes, 700] if large else sizes
    images = 18 if layout == "images16" else 1
    left = Viewed(rng, tuple(sizes), layout, images)
    right = None if kind == "first" else Viewed(rng, tuple(sizes), layout, images, (repeated,))
    scaled = {"scale": 2.0, "shift": -0.5} if kind == "first" else {"fill": 7.0} if kind.startswith("where") else {}
    op = _kernels.ViewArithmetic(
        kind, sizes=sizes, left=left.spec, right=None if right is None else right.spec, activation=activation,
        layout=layout, isa=isa, **scaled,
    )  # fmt: skip
    x = left.values
    combined = x * 2 - np.float32(0.5) if right is None else _OPERATIONS[kind](x, right.values)
    found = ran(op, left, right, tuple(sizes))
    np.testing.assert_allclose(found, activate(combined, activation), rtol=3e-7, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("kind", "function"), [
    ("square_root", np.sqrt), ("reciprocal", lambda x: 1 / x), ("exponential", np.exp),
    ("softplus", lambda x: np.logaddexp(0, x)), ("logarithm", np.log), ("sine", np.sin), ("cosine", np.cos),
])  # fmt: skip
def test_functions_of_one_view(isa: str, kind: str, function: Any) -> None:
    """Over all that floats have, and where results vanish, overflow or are no numbers."""
    x = np.concatenate([np.geomspace(1e-30, 1e30, 333), np.linspace(0.5, 89, 300), [0, math.inf, math.nan]])
    x = np.concatenate([x, -x]).astype(np.float32)
    op = _kernels.ViewArithmetic(kind, sizes=(x.size,), left=((1, x.size, 1, 1), 0, [1]), layout="planes", isa=isa)
    out = np.empty_like(x)
    op.run(_kernels.ThreadPool(1), (1, x.size, 1, 1), x, out)
    with np.errstate(all="ignore"):
        expected = function(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(out, expected, rtol=6e-7, atol=2e-38)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("kind", "function"), [
    ("power", np.power), ("maximum", np.maximum), ("minimum", np.minimum), ("equal", np.equal), ("less", np.less),
])  # fmt: skip
def test_functions_of_two_views_of_any_floats(isa: str, kind: str, function: Any) -> None:
    x = np.array([-2, -1, -0.5, 0, 0.5, 1, 3, 1e30, math.inf, -math.inf, math.nan], np.float32)
    x, y = (own.reshape(-1) for own in np.meshgrid(x, x))
    spec = ((1, x.size, 1, 1), 0, [1])
    op = _kernels.ViewArithmetic(kind, sizes=(x.size,), left=spec, right=spec, layout="planes", isa=isa)
    out = np.empty_like(x)
    op.run(_kernels.ThreadPool(1), (1, x.size, 1, 1), x, out, y)
    with np.errstate(all="ignore"):
        expected = function(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(out, expected, rtol=3e-7)


def test_only_a_selection_is_filled() -> None:
    spec = ((1, 4, 1, 1), 0, [1])
    with pytest.raises(ValueError, match="filled"):
        _kernels.ViewArithmetic("add", sizes=(4,), left=spec, right=spec, fill=1.0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_result_is_written_where_a_view_says(layout: str) -> None:
    """Both halves of the middle axis, of which the second one is the same everywhere."""
    rng = np.random.default_rng(5)
    images = 17 if layout == "images16" else 1
    parts = [Viewed(rng, (3, 2, 40), layout, images), Viewed(rng, (3, 1, 40), layout, images, (0, 1, 2))]
    shape = (images, 3 * 3 * 40, 1, 1)
    out = aligned((32 if images > 1 else 1) * shape[1])
    for part, count, first in zip(parts, (2, 1), (0, 80), strict=True):
        op = _kernels.ViewArithmetic(
            "first", sizes=(3, count, 40), left=part.spec, out=(shape, first, (120, 40, 1)), layout=layout
        )
        op.run(_kernels.ThreadPool(1), part.shape, part.floats, out)
    found = images_of(out, shape) if images > 1 else out
    expected = np.concatenate([part.values for part in parts], axis=2)
    np.testing.assert_array_equal(found.reshape(images, 3, 3, 40), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize("shape", [(3, 1, 1, 1), (5, 37, 1, 1), (18, 1003, 1, 1), (2, 7, 3, 9)])
def test_softmax_over_channels(isa: str, layout: str, is_log: bool, shape: Shape) -> None:
    x = 20 * random_array(np.random.default_rng(2), shape)
    op = _kernels.Softmax(is_log=is_log, layout=layout, isa=isa)
    source = lanes_of(x) if layout == "images16" else x.reshape(-1)
    out = aligned(source.size)
    op.run(_kernels.ThreadPool(2), shape, source, out)
    found = images_of(out, shape) if layout == "images16" else out.reshape(shape)
    shifted = x.astype(np.float64) - x.max(axis=1, keepdims=True)
    expected = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(found, expected if is_log else np.exp(expected), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_softmax_of_what_is_no_number(layout: str) -> None:
    """As numpy and onnxruntime have it: NaN in all of the row, and zeros beside -inf."""
    rows = [[0.0, -math.inf, 0.0], [math.nan, 0.0, 1.0], [-math.inf] * 3, [0.0, math.nan, 1.0]]
    x = np.array(rows, np.float32).reshape(4, 3, 1, 1)
    source = lanes_of(x) if layout == "images16" else x.reshape(-1)
    out = aligned(source.size)
    _kernels.Softmax(layout=layout).run(_kernels.ThreadPool(1), x.shape, source, out)
    found = images_of(out, x.shape) if layout == "images16" else out
    expected = np.full((4, 3), math.nan, np.float32)
    expected[0] = [0.5, 0, 0.5]
    np.testing.assert_array_equal(found.reshape(4, 3), expected)


@pytest.mark.parametrize("view", [
    ((1, 8, 1, 1), 1, [4, 1]), ((1, 8, 1, 1), 0, [-1, 1]), ((1, 8, 1, 1), 0, [2**62, 0]), ((1, 8, 1, 1), -1, [1, 1]),
    ((1, 8, 1, 1), 0, [1]), ((2**62, 8, 1, 1), 0, [1, 1]),
])  # fmt: skip
def test_a_view_that_leaves_its_tensor_is_refused(view: Any) -> None:
    with pytest.raises(ValueError, match=r"view|shape"):
        _kernels.ViewArithmetic("first", sizes=(2, 4), left=view)
    with pytest.raises(ValueError, match=r"view|shape"):
        _kernels.BatchedMatmul(batch=(), rows=2, columns=2, depth=4, left=((1, 8, 1, 1), 0, [4, 1]), right=view)


def test_images_in_lanes_are_as_many_in_both_operands() -> None:
    views = [((images, 8, 1, 1), 0, [4, 1]) for images in (16, 32)]
    with pytest.raises(ValueError, match="as many images"):
        _kernels.ViewArithmetic("add", sizes=(2, 4), left=views[0], right=views[1], layout="images16")
    with pytest.raises(ValueError, match="as many images"):
        _kernels.BatchedMatmul(batch=(), rows=2, columns=2, depth=4, left=views[0], right=views[1], layout="images16")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_exclusive", [False, True])
@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("shape", [(3, 1, 1, 1), (5, 37, 1, 1), (18, 103, 1, 1), (33, 7, 3, 9), (2, 5, 20, 31)])
def test_sums_of_channels_up_to_each(layout: str, is_exclusive: bool, is_reversed: bool, shape: Shape) -> None:
    x = random_array(np.random.default_rng(2), shape)
    op = _kernels.CumulativeSum(is_exclusive=is_exclusive, is_reversed=is_reversed, layout=layout)
    source = lanes_of(x) if layout == "images16" else x.reshape(-1)
    out = aligned(source.size)
    op.run(_kernels.ThreadPool(2), shape, source, out)
    assert np.isfinite(out).all()
    found = images_of(out, shape) if layout == "images16" else out.reshape(shape)
    values = x[:, ::-1] if is_reversed else x
    sums = np.cumsum(values, axis=1, dtype=np.float32)
    if is_exclusive:
        sums = np.concatenate([np.zeros_like(sums[:, :1]), sums[:, :-1]], axis=1)
    np.testing.assert_array_equal(found, sums[:, ::-1] if is_reversed else sums)


def test_sums_past_the_last_image_stay_finite() -> None:
    source = np.full(16 * 40, 1e38, np.float32)
    source.reshape(40, 16)[:, 0] = 1.0
    out = aligned(source.size)
    aligned_source = aligned(source.size)
    aligned_source[:] = source
    _kernels.CumulativeSum().run(_kernels.ThreadPool(1), (1, 40, 1, 1), aligned_source, out)
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(out.reshape(40, 16)[:, 0], np.arange(1, 41))
