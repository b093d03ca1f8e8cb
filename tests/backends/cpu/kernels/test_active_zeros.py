"""Weights that a mask leaves and whose value is zero: the kernels multiply by them like by any other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_reference import LAYOUTS, assert_close, conv, random_array, run

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.isa import generates_code

Array = np.ndarray[Any, Any]
ISAS = _kernels.supported_isas()
# Kernel, and how it moves.
CONVOLUTIONS = [
    ((3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 1), {"groups": 2}),
    ((3, 3), {"pads": (1, 1, 1, 1), "stride": (2, 2), "groups": 2}),
    ((2, 3), {"pads": (0, 2, 1, 2), "stride": (1, 3), "dilation": (2, 2)}),
]


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


def masked_weights(shape: tuple[int, ...], density: float, zeros: str) -> tuple[Array, Array]:
    """Values and a mask that prunes one row; ``zeros`` says which active weights are zero."""
    rng = np.random.default_rng(1)
    mask = rng.random(shape) < density
    mask[3] = False
    values = random_array(rng, shape) * mask
    if zeros == "rows":
        values[[0, 2, 4]] = 0
    elif zeros == "half":
        values[rng.random(shape) < 0.5] = 0
    elif zeros == "all":
        values[:] = -0.0
    return values, mask


def pack(values: Array, mask: Array, transposed: bool = False) -> _kernels.SparseWeights:
    rows, columns = len(values), values[0].size
    stored = np.ascontiguousarray(values.reshape(rows, columns).T if transposed else values)
    bits = mask.reshape(rows, columns).T if transposed else mask
    packed = np.packbits(bits.reshape(-1), bitorder="little")
    return _kernels.SparseWeights.from_dense(rows, columns, stored, transposed, packed)


@pytest.mark.parametrize("zeros", ["nowhere", "rows", "half", "all"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(7, 5), (5, 64), (64, 13), (9, 131)])
def test_as_many_weights_are_listed_as_the_mask_leaves(shape: tuple[int, int], transposed: bool, zeros: str) -> None:
    values, mask = masked_weights(shape, 0.4, zeros)
    assert pack(values, mask, transposed).nnz == mask.sum()
    assert pack(values, mask, transposed).scaled(np.zeros(shape[0], np.float32)).nnz == mask.sum()
    bits = np.packbits(mask.reshape(-1), bitorder="little")
    assert _kernels.count_weights(values, bits) == (mask.sum(), True)


def test_a_mask_that_leaves_nearly_all_lists_all() -> None:
    values, mask = masked_weights((50, 40), 1.0, "all")
    assert pack(values, mask).nnz == values.size


def test_a_mask_of_another_size_is_refused() -> None:
    values = np.zeros((4, 5), np.float32)
    for size in (2, 4):
        bits = np.zeros(size, np.uint8)
        with pytest.raises(ValueError, match="one bit per value"):
            _kernels.SparseWeights.from_dense(4, 5, values, False, bits)
        with pytest.raises(ValueError, match="one bit per value"):
            _kernels.count_weights(values, bits)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("kernel", "geometry"), CONVOLUTIONS)
@pytest.mark.parametrize("algorithm", ["auto", "single", "pair", "generated"])
def test_convolutions_hold_as_many_multiply_adds_as_the_mask_leaves(
    pool: _kernels.ThreadPool, isa: str, layout: str, kernel: tuple[int, int], geometry: dict[str, Any], algorithm: str
) -> None:
    if algorithm == "generated" and not generates_code(isa):
        pytest.skip("code is not generated")
    rng = np.random.default_rng(2)
    groups = geometry.get("groups", 1)
    for zeros in ("rows", "all"):
        weights, mask = masked_weights((24 * groups, 16, *kernel), 0.2, zeros)
        op = _kernels.Conv(pack(weights, mask), kernel=kernel, layout=layout, algorithm=algorithm, isa=isa, **geometry)
        for images, size in ((1, (9, 21)), (17, (6, 7))):
            x = random_array(rng, (images, 16 * groups, *size))
            residual = random_array(rng, conv(x, weights, **geometry).shape)
            expected = conv(x, weights, **geometry, residual=residual)
            assert_close(run(pool, op, x, residual), expected, weights[0].size)
            # Out of the packed form, now that there is no other.
            assert op.release_source()
            assert op.source().nnz == mask.sum()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 5, 40])
@pytest.mark.parametrize("zeros", ["rows", "all"])
def test_products_hold_as_many_multiply_adds_as_the_mask_leaves(
    pool: _kernels.ThreadPool, isa: str, tokens: int, zeros: str
) -> None:
    weights, mask = masked_weights((70, 90), 0.2, zeros)
    op = _kernels.Matmul(pack(weights, mask, transposed=True), isa=isa)
    x = random_array(np.random.default_rng(3), (tokens, 90, 1, 1))
    expected = x[:, :, 0, 0].astype(np.float64) @ weights.T
    assert_close(run(pool, op, x)[:, :, 0, 0], expected, 90)
    assert op.release_source()
    assert op.source().nnz == mask.sum()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dense_forms_are_unpacked_with_their_zeros(pool: _kernels.ThreadPool, layout: str) -> None:
    """A scale of zero that was folded into them does not make other, sparse ones of them."""
    weights = random_array(np.random.default_rng(4), (10, 6, 3, 3))
    source = _kernels.SparseWeights.from_dense(10, 54, weights).scaled(np.zeros(10, np.float32))
    op = _kernels.Conv(source, kernel=(3, 3), pads=(1, 1, 1, 1), layout=layout)
    for images in (1, 17):
        x = random_array(np.random.default_rng(5), (images, 6, 8, 9))
        assert not run(pool, op, x).any()
        assert op.describe(x.shape, pool.threads)["algorithm"] == "dense"
        assert op.release_source()
        assert op.source().density == 1


def test_dense_products_are_unpacked_with_their_zeros() -> None:
    values = random_array(np.random.default_rng(6), (20, 40))
    values[3] = values[7, 5:] = 0
    source = _kernels.DenseProduct(_kernels.SparseWeights.from_dense(20, 40, values)).source()
    assert source.density == 1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
def test_an_active_zero_times_infinity_is_not_a_number(
    pool: _kernels.ThreadPool, isa: str, layout: str, kernel: tuple[int, int]
) -> None:
    weights, mask = masked_weights((40, 30, *kernel), 0.3, "half")
    mask[:, 4] = np.arange(40)[:, None, None] % 3 == 0
    weights[:, 4] = 0
    x = random_array(np.random.default_rng(7), (2, 30, 8, 8))
    x[:, 4] = np.inf
    op = _kernels.Conv(pack(weights, mask), kernel=kernel, layout=layout, isa=isa)
    y = run(pool, op, x)
    assert np.isnan(y[:, mask[:, 4].any((1, 2))]).all()
    assert np.isfinite(y[:, ~mask[:, 4].any((1, 2))]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_an_active_zero_of_a_product_times_infinity_is_not_a_number(
    pool: _kernels.ThreadPool, isa: str, tokens: int
) -> None:
    weights, mask = masked_weights((40, 30), 0.3, "half")
    mask[:, 4] = np.arange(40) % 3 == 0
    weights[:, 4] = 0
    x = random_array(np.random.default_rng(8), (tokens, 30, 1, 1))
    x[:, 4] = np.inf
    y = run(pool, _kernels.Matmul(pack(weights, mask), isa=isa), x)
    assert np.isnan(y[:, mask[:, 4]]).all()
    assert np.isfinite(y[:, ~mask[:, 4]]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(9, 9), (40, 70)], ids=["planes are copied", "planes are cut"])
def test_depthwise_convolutions_multiply_by_the_taps_that_the_mask_leaves(
    pool: _kernels.ThreadPool, isa: str, layout: str, size: tuple[int, int]
) -> None:
    weights, mask = masked_weights((7, 1, 3, 3), 0.5, "half")
    mask[0, 0, 1] = (True, False, True)
    weights[0, 0, 1] = weights[1] = 0
    mask[1] = True
    geometry = {"stride": (2, 1), "pads": (1, 1, 1, 1)}
    op = _kernels.Depthwise(pack(weights, mask), kernel=(3, 3), layout=layout, isa=isa, **geometry)
    x = random_array(np.random.default_rng(9), (17, 7, *size))
    assert_close(run(pool, op, x), conv(x, weights, groups=7, **geometry), 9)
    # What reaches an output through an active tap and nothing else.
    x[:] = np.inf
    reached = conv(np.ones_like(x), mask.astype(np.float32), groups=7, **geometry) > 0
    assert np.array_equal(np.isnan(run(pool, op, x)) | np.isinf(run(pool, op, x)), reached)
