"""Operators that move values, against numpy in both layouts."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_reference import LAYOUTS, Shape, aligned, assert_close, images_of, lanes_of, random_array, run

from sift_onnx.backends.cpu import _kernels

ISAS = _kernels.supported_isas()
SHAPES = [(1, 6, 5, 7), (3, 6, 1, 1), (16, 6, 3, 3), (17, 6, 1, 19), (2, 6, 40, 60)]


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("channels", [[0, 1, 2, 3, 4, 5], [2, 3], [5], [0, 3, 1, 4, 2, 5], [4, 4, 0]])
def test_channels_are_taken_in_their_order(
    pool: _kernels.ThreadPool, layout: str, shape: Shape, channels: list[int]
) -> None:
    x = random_array(np.random.default_rng(0), shape)
    op = _kernels.ChannelCopy(channels, 0, len(channels), layout=layout)
    np.testing.assert_array_equal(run(pool, op, x), x[:, channels])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_copy_leaves_the_other_channels_of_its_output(pool: _kernels.ThreadPool, shape: Shape) -> None:
    n, _, h, w = shape
    x = random_array(np.random.default_rng(0), shape)
    out = random_array(np.random.default_rng(1), (n, 11, h, w))
    expected = out.copy()
    expected[:, 3:9] = x
    planes, lanes = out.copy(), lanes_of(out)
    _kernels.ChannelCopy(range(6), 3, 11, layout="planes").run(pool, shape, x, planes)
    _kernels.ChannelCopy(range(6), 3, 11, layout="images16").run(pool, shape, lanes_of(x), lanes)
    np.testing.assert_array_equal(planes, expected)
    np.testing.assert_array_equal(images_of(lanes, expected.shape), expected)


@pytest.mark.parametrize(
    ("channels", "first", "total"), [([-1], 0, 1), ([0], 1, 1), ([0, 1], -1, 5), ([2**62], 0, 1), ([0, 1], 0, 1)]
)
def test_channels_that_are_not_there_are_refused(channels: list[int], first: int, total: int) -> None:
    with pytest.raises(ValueError, match="channel copy"):
        _kernels.ChannelCopy(channels, first, total)


def test_an_input_of_fewer_channels_is_refused(pool: _kernels.ThreadPool) -> None:
    with pytest.raises(ValueError, match="does not have these channels"):
        _kernels.ChannelCopy([6], 0, 1).output_shape((1, 6, 1, 1))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("step", [(1, 1), (2, 2), (1, 3), (5, 1)])
def test_pixels_are_repeated(pool: _kernels.ThreadPool, layout: str, shape: Shape, step: tuple[int, int]) -> None:
    x = random_array(np.random.default_rng(0), shape)
    rows, columns = (np.repeat(range(n), k).tolist() for n, k in zip(shape[2:], step, strict=True))
    op = _kernels.PixelCopy(rows, columns, layout=layout)
    np.testing.assert_array_equal(run(pool, op, x), x.repeat(step[0], 2).repeat(step[1], 3))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_pixels_that_come_from_nowhere_are_filled(pool: _kernels.ThreadPool, layout: str, shape: Shape) -> None:
    x = random_array(np.random.default_rng(0), shape)
    rows = [-1, *range(shape[2]), -1, -1]
    columns = [-1, -1, *range(shape[3])]
    op = _kernels.PixelCopy(rows, columns, 7.0, layout=layout)
    expected = np.pad(x, ((0, 0), (0, 0), (1, 2), (2, 0)), constant_values=7)
    np.testing.assert_array_equal(run(pool, op, x), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_pixels_at_all(pool: _kernels.ThreadPool, layout: str) -> None:
    op = _kernels.PixelCopy([], [0], layout=layout)
    assert run(pool, op, np.ones((2, 3, 1, 1), np.float32)).shape == (2, 3, 0, 1)
    filled = _kernels.PixelCopy([-1, -1], [-1], 2.0, layout=layout)
    assert (run(pool, filled, np.ones((2, 3, 0, 4), np.float32)) == 2).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_pixels_between_two(pool: _kernels.ThreadPool, layout: str, shape: Shape) -> None:
    x = random_array(np.random.default_rng(0), shape)
    h, w = shape[2:]
    rows = [(0, h - 1, 0.25), (h - 1, 0, 1.0), (h // 2, h // 2, 0.5)]
    columns = [(w - 1, 0, 0.125), (0, w - 1, 0.0)]
    above, below, down = map(np.array, zip(*rows, strict=True))
    left, right, along = map(np.array, zip(*columns, strict=True))
    between = x[:, :, above] + (x[:, :, below] - x[:, :, above]) * down.reshape(-1, 1)
    expected = between[..., left] + (between[..., right] - between[..., left]) * along
    assert_close(run(pool, _kernels.LinearResize(rows, columns, layout=layout), x), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("depth_first", [False, True])
@pytest.mark.parametrize("block", [(1, 1), (2, 2), (1, 3), (3, 2)])
@pytest.mark.parametrize("shape", SHAPES)
def test_channels_become_pixels(
    pool: _kernels.ThreadPool, layout: str, depth_first: bool, block: tuple[int, int], shape: Shape
) -> None:
    n, c, h, w = shape
    i, j = block
    x = random_array(np.random.default_rng(0), (n, c * i * j, h, w))
    if depth_first:
        expected = x.reshape(n, i, j, c, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        expected = x.reshape(n, c, i, j, h, w).transpose(0, 1, 4, 2, 5, 3)
    op = _kernels.DepthToSpace(block, depth_first=depth_first, layout=layout)
    np.testing.assert_array_equal(run(pool, op, x), expected.reshape(n, c, h * i, w * j))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["add", "subtract", "multiply"])
def test_a_value_per_channel_of_each_image(
    pool: _kernels.ThreadPool, isa: str, layout: str, shape: Shape, kind: str
) -> None:
    rng = np.random.default_rng(0)
    x, values = random_array(rng, shape), random_array(rng, (*shape[:2], 1, 1))
    expected = {"add": x + values, "subtract": x - values, "multiply": x * values}[kind]
    op = _kernels.ChannelCombine(kind, activation=("clip", -0.5, 6.0), layout=layout, isa=isa)
    # The second operand has a shape of its own: `run` of the tests' reference asks the operator for the first one's.
    source, second = (x, values) if layout == "planes" else (lanes_of(x), lanes_of(values))
    out = np.full(shape, np.nan, np.float32) if layout == "planes" else aligned(source.size)
    op.run(pool, shape, source, out, second)
    assert_close(out if layout == "planes" else images_of(out, shape), np.clip(expected, -0.5, 6))


def test_a_second_operand_of_another_size_is_refused(pool: _kernels.ThreadPool) -> None:
    x = np.ones((1, 2, 3, 3), np.float32)
    op = _kernels.ChannelCombine("multiply", layout="planes")
    with pytest.raises(ValueError, match="18 values, the shape 2"):
        op.run(pool, x.shape, x, np.empty_like(x), x)
    with pytest.raises(ValueError, match="second operand is missing"):
        op.run(pool, x.shape, x, np.empty_like(x))
    with pytest.raises(ValueError, match="two operands"):
        _kernels.ChannelCombine("first")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_groups_of_channels_are_normalized(
    pool: _kernels.ThreadPool, isa: str, layout: str, shape: Shape, groups: int
) -> None:
    rng = np.random.default_rng(0)
    x, scale, shift = random_array(rng, shape) + 3, random_array(rng, (6,)), random_array(rng, (6,))
    grouped = x.astype(np.float64).reshape(shape[0], groups, -1)
    mean, variance = grouped.mean(-1, keepdims=True), grouped.var(-1, keepdims=True)
    expected = ((grouped - mean) / np.sqrt(variance + 1e-3)).reshape(shape)
    op = _kernels.GroupNormalization(scale, shift, groups, 1e-3, layout=layout, isa=isa)
    assert_close(run(pool, op, x), expected * scale.reshape(6, 1, 1) + shift.reshape(6, 1, 1), 100)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_slopes_differ_by_channel(pool: _kernels.ThreadPool, isa: str, layout: str) -> None:
    rng = np.random.default_rng(0)
    x, slopes = random_array(rng, (17, 6, 3, 5)), random_array(rng, (6,))
    one, zero = np.ones(6, np.float32), np.zeros(6, np.float32)
    op = _kernels.ChannelScale(one, zero, slopes=slopes, activation=("leaky", 0.0, 0.0), layout=layout, isa=isa)
    assert_close(run(pool, op, x), np.where(x < 0, x * slopes.reshape(6, 1, 1), x))
    with pytest.raises(ValueError, match="one slope per scale"):
        _kernels.ChannelScale(one, zero, slopes=slopes[:5], activation=("leaky", 0.0, 0.0))
