"""The forms in which a convolution's weights are stored, and the tiles that go with them, each where it is chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_reference import assert_close, conv, random_array, random_sparse, run

from sift_onnx.backends.cpu import _kernels

ISAS = _kernels.supported_isas()


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("kernel", "geometry", "widths"),
    [
        ((3, 3), {"pads": (1, 1, 1, 1)}, (1, 5, 6, 7, 8, 13, 14, 15, 16, 28, 30)),
        ((3, 3), {"pads": (1, 0, 1, 2)}, (6, 7, 14, 15, 29)),
        ((3, 3), {}, (7, 8, 16, 17, 33)),
        ((1, 3), {"dilation": (1, 3), "pads": (0, 3, 0, 3)}, (4, 5, 10, 13, 20)),
        ((5, 5), {"pads": (2, 2, 2, 2)}, (6, 12, 14, 24)),
        ((3, 3), {"stride": (2, 1), "pads": (0, 1, 1, 1), "groups": 2}, (7, 14, 28)),
    ],
)
def test_taps_that_rotate_lanes_agree_with_numpy(
    pool: _kernels.ThreadPool, isa: str, kernel: tuple[int, int], geometry: dict[str, Any], widths: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(10)
    groups = geometry.get("groups", 1)
    rotated = 0
    for width in widths:
        x = random_array(rng, (2, 48 * groups, 14, width))
        weights = random_sparse(rng, (40 * groups, 48, *kernel), 0.12)
        residual = random_array(rng, conv(x, weights, **geometry).shape)
        source = _kernels.SparseWeights.from_dense(len(weights), weights[0].size, weights)
        op = _kernels.Conv(
            source, kernel=kernel, layout="planes", isa=isa, microarchitecture="amd", algorithm="single", **geometry
        )
        rotated += op.describe(x.shape, pool.threads)["form"] == "csr_by_tap"
        assert_close(run(pool, op, x, residual), conv(x, weights, **geometry, residual=residual), weights[0].size)
        # Packed again from the lists of one or the other kind.
        assert op.release_source()
        other = random_array(rng, (1, 48 * groups, 9, 2 * width + 3))
        assert_close(run(pool, op, other), conv(other, weights, **geometry), weights[0].size)
    assert (rotated > 0) == (isa == "avx512")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("images", "size", "kernel", "geometry"),
    [
        (1, (25, 25), (3, 3), {"pads": (1, 1, 1, 1)}),
        (1, (8, 9), (3, 3), {"pads": (1, 1, 1, 1)}),  # a block holds parts of two strips
        (3, (5, 5), (3, 3), {"pads": (1, 1, 1, 1)}),  # and of two images
        (5, (9, 3), (3, 3), {"pads": (0, 1, 2, 1)}),  # the last strip is shorter, a block holds several of them
        (1, (48, 51), (3, 3), {"pads": (1, 1, 1, 1), "stride": (2, 2)}),
        (2, (18, 28), (1, 3), {"pads": (0, 1, 0, 1), "stride": (1, 3), "dilation": (1, 2)}),
        (5, (7, 7), (1, 1), {"groups": 2}),
    ],
)
@pytest.mark.parametrize("activation", [("none", 0.0, 0.0), ("clip", 0.0, 6.0)])
def test_lanes_that_wrap_rows_agree_with_numpy(
    pool: _kernels.ThreadPool,
    isa: str,
    images: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    geometry: dict[str, Any],
    activation: tuple[str, float, float],
) -> None:
    """After the end of a strip of rows, a block holds the beginning of the next: lanes of many widths stay busy."""
    rng = np.random.default_rng(12)
    groups = geometry.get("groups", 1)
    x = random_array(rng, (images, 96 * groups, *size))
    weights = random_sparse(rng, (100 * groups, 96, *kernel), 0.1)
    bias = random_array(rng, (len(weights),))
    residual = random_array(rng, conv(x, weights, **geometry).shape)
    source = _kernels.SparseWeights.from_dense(len(weights), weights[0].size, weights)
    op = _kernels.Conv(
        source, bias, kernel=kernel, layout="planes", algorithm="single", isa=isa, microarchitecture="intel",
        activation=activation, **geometry,
    )  # fmt: skip
    assert op.describe(x.shape, 1)["wraps_rows"]
    expected = conv(x, weights, bias, **geometry, activation=activation, residual=residual)
    wrapped = run(_kernels.ThreadPool(1), op, x, residual)
    assert_close(wrapped, expected, weights[0].size)
    np.testing.assert_array_equal(run(pool, op, x, residual), wrapped)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("kernel", "geometry"),
    [
        ((3, 3), {"pads": (1, 1, 1, 1)}),
        ((3, 3), {"pads": (1, 1, 1, 1), "stride": (2, 2)}),
        ((5, 5), {"pads": (2, 1, 2, 3)}),
        ((1, 1), {"groups": 2}),
        ((3, 3), {"pads": (0, 3, 0, 3), "stride": (1, 3), "dilation": (1, 2)}),
        ((5, 5), {"pads": (2, 2, 2, 2), "stride": (2, 2), "groups": 2}),
    ],
)
def test_blocks_of_8_lanes_agree_with_numpy(
    pool: _kernels.ThreadPool, isa: str, kernel: tuple[int, int], geometry: dict[str, Any]
) -> None:
    """Small images, on a processor where half a register takes half the time."""
    rng = np.random.default_rng(15)
    groups = geometry.get("groups", 1)
    # So that lanes without a pixel take longer than copying.
    channels, rows = (64, 44) if kernel != (1, 1) else (256, 300)
    weights = random_sparse(rng, (rows * groups, channels, *kernel), 0.1)
    bias = random_array(rng, (len(weights),))
    source = _kernels.SparseWeights.from_dense(len(weights), weights[0].size, weights)
    relu = ("clip", 0.0, np.inf)
    forms = set()
    wraps_rows = taps_overlap = False
    for images in (1, 2, 3, 4):
        for height, width in ((3, 6), (4, 4), (5, 7), (6, 6), (7, 7), (8, 8), (13, 13), (14, 15), (12, 24), (11, 5)):
            x = random_array(rng, (images, channels * groups, height, width))
            residual = random_array(rng, conv(x, weights, **geometry).shape)
            op = _kernels.Conv(
                source, bias, kernel=kernel, layout="planes", activation=relu, isa=isa, microarchitecture="zen4",
                algorithm="single", **geometry,
            )  # fmt: skip
            how = op.describe(x.shape, pool.threads)
            if how["lanes"] == (1, 8):
                forms.add(how["form"])
                wraps_rows |= how["wraps_rows"]
                taps_overlap |= how["taps_overlap"]
            expected = conv(x, weights, bias, **geometry, activation=relu, residual=residual)
            assert_close(run(pool, op, x, residual), expected, weights[0].size)
            # What was packed for these blocks is packed again for others.
            assert op.release_source()
            other = random_array(rng, (1, channels * groups, 9, 31))
            expected = conv(other, weights, bias, **geometry, activation=relu)
            assert_close(run(pool, op, other), expected, weights[0].size)
    assert "sell" in forms
    one_copy = kernel[1] > 1 and geometry.get("stride", (1, 1))[1] == 1
    assert taps_overlap == one_copy
    assert wraps_rows or one_copy or kernel == (1, 1)


@pytest.mark.skipif("avx512" not in ISAS, reason="only where registers are twice as wide as a block of 8 lanes")
def test_blocks_of_8_lanes_take_lists_in_place_of_pairs(pool: _kernels.ThreadPool) -> None:
    """Of weights so many that code would come from memory."""
    rng = np.random.default_rng(17)
    x = random_array(rng, (1, 200, 7, 7))
    weights = random_sparse(rng, (800, 200, 3, 3), 0.5)
    source = _kernels.SparseWeights.from_dense(800, 1800, weights)
    how = {"kernel": (3, 3), "pads": (1, 1, 1, 1), "layout": "planes", "isa": "avx512"}
    chosen = _kernels.Conv(source, microarchitecture="zen4", **how)
    asked_for = _kernels.Conv(source, microarchitecture="zen4", algorithm="pair", **how)
    elsewhere = _kernels.Conv(source, microarchitecture="intel", **how)
    described = [op.describe(x.shape, pool.threads) for op in (chosen, asked_for, elsewhere)]
    assert [item["algorithm"] for item in described] == ["single", "pair", "pair"]
    assert [item["form"] for item in described] == ["sell", "csr_pairs", "csr_pairs"]
    expected = conv(x, weights, pads=(1, 1, 1, 1))
    for op in (chosen, asked_for, elsewhere):
        assert_close(run(pool, op, x), expected, 1800)
    # And a shape for which pairs are chosen again.
    wide = random_array(rng, (1, 200, 9, 9))
    assert chosen.release_source()
    assert chosen.describe(wide.shape, pool.threads)["algorithm"] == "pair"
    assert_close(run(pool, chosen, wide), conv(wide, weights, pads=(1, 1, 1, 1)), 1800)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("layout", "size"), [("planes", (3, 7)), ("images16", (1, 1))])
def test_padding_of_shorter_lists_is_finite(
    pool: _kernels.ThreadPool, isa: str, layout: str, size: tuple[int, int]
) -> None:
    """Rows in SELL have lists of one length: no weight of zero may meet an infinity of another row's operands."""
    rng = np.random.default_rng(16)
    channels, rows = 70, 32
    weights = random_sparse(rng, (rows, channels, 3, 3), 0.2)
    weights[::4, :, :, 1:] = 0
    weights[1::8] = 0
    weights[:, 0] = 0
    weights[5, 0] = 1
    weights[:, 69] = 0
    weights[6, 69] = 1
    x = random_array(rng, (1, channels, *size))
    x[:, 0] = np.inf
    x[:, 69] = np.nan
    source = _kernels.SparseWeights.from_dense(rows, channels * 9, weights)
    op = _kernels.Conv(
        source, kernel=(3, 3), pads=(1, 1, 1, 1), layout=layout, isa=isa, microarchitecture="zen4", algorithm="single"
    )
    assert op.describe(x.shape, pool.threads)["form"] == "sell"
    result = run(pool, op, x)
    assert np.isposinf(result[:, 5]).all()
    assert np.isnan(result[:, 6]).all()
    finite = [row for row in range(rows) if row not in (5, 6)]
    x[:, (0, 69)] = 0
    assert_close(result[:, finite], conv(x, weights[finite], pads=(1, 1, 1, 1)), channels * 9)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("processor", ["amd", "zen4", "intel"])
@pytest.mark.parametrize("rows", [1, 3, 16, 18, 130, 700])
def test_rows_in_sell_agree_with_numpy(pool: _kernels.ThreadPool, isa: str, processor: str, rows: int) -> None:
    """Lists of every length, rows of zeros among them, in bands of which the last may be shorter."""
    rng = np.random.default_rng(11)
    x = random_array(rng, (16, 90, 1, 1))
    weights = random_sparse(rng, (2 * rows, 45, 1, 1), 0.2) * (rng.random((2 * rows, 1, 1, 1)) < 0.8)
    bias = random_array(rng, (2 * rows,))
    residual = random_array(rng, (16, 2 * rows, 1, 1))
    expected = conv(x, weights, bias, groups=2, residual=residual)
    source = _kernels.SparseWeights.from_dense(2 * rows, 45, weights)
    op = _kernels.Conv(source, bias, groups=2, algorithm="single", isa=isa, microarchitecture=processor)
    assert op.describe(x.shape, pool.threads)["form"] == "sell"
    for threads in (1, 2, 9):
        assert_close(run(_kernels.ThreadPool(threads), op, x, residual), expected, 45)
        # The bands of another number of threads are made of these.
        assert op.release_source()
