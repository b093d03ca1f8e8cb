"""How convolutions pack their weights for shapes that come one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_reference import assert_close, conv, random_array, random_sparse, run

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.isa import generates_code

ISAS = _kernels.supported_isas()
GENERATES = generates_code(_kernels.detected_isa())
ALGORITHMS = ("single", "pair", "dense", *(["generated"] if GENERATES else []))


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("groups", [1, 2])
def test_released_weights_are_packed_again_from_the_packed_form(
    pool: _kernels.ThreadPool, algorithm: str, groups: int
) -> None:
    rng = np.random.default_rng(9)
    weights = random_sparse(rng, (14, 40, 3, 3), 0.3)
    weights[2:9] = 0  # a few neighbours without entries, too
    source = _kernels.SparseWeights.from_dense(14, 360, weights)
    options = {"kernel": (3, 3), "pads": (1, 1, 1, 1), "layout": "planes", "algorithm": algorithm, "groups": groups}
    kept = _kernels.Conv(source, **options)
    released = _kernels.Conv(source, **options)
    assert not released.release_source()
    assert released.weight_bytes < kept.describe((1, 40 * groups, 7, 7), pool.threads)["packed_bytes"]
    tilings = []
    for size in ((7, 7), (3, 60), (30, 30)):
        x = random_array(rng, (1, 40 * groups, *size))
        np.testing.assert_array_equal(run(pool, released, x), run(pool, kept, x))
        assert released.release_source()
        assert released.weight_bytes == kept.weight_bytes
        tilings.append(released.describe(x.shape, pool.threads)["tile"])
    assert len(set(tilings)) >= 2


@pytest.mark.parametrize("density", [0.02, 0.1, 0.6])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("empty", [0, 9, 64])
def test_released_lists_are_packed_again_for_tiles_of_any_size(
    pool: _kernels.ThreadPool, empty: int, density: float, isa: str
) -> None:
    rng = np.random.default_rng(17)
    weights = random_sparse(rng, (69, 900, 1, 1), density)
    weights[20 : 20 + empty] = 0
    source = _kernels.SparseWeights.from_dense(69, 900, weights)
    kept, released = (_kernels.Conv(source, layout="planes", algorithm="single", isa=isa) for _ in range(2))
    tilings = []
    for tokens in (3, 100, 40, 200, 17):
        x = random_array(rng, (1, 900, 1, tokens))
        np.testing.assert_array_equal(run(pool, released, x), run(pool, kept, x))
        assert released.release_source()
        assert released.weight_bytes == kept.weight_bytes
        tilings.append(released.describe(x.shape, pool.threads)["tile"])
    found = released.source()
    assert found.nnz == source.nnz
    assert len(set(tilings)) >= 2


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("algorithm", ["single", "pair"])
@pytest.mark.parametrize("groups", [1, 2])
def test_lists_made_on_several_threads_hold_all_weights(isa: str, algorithm: str, groups: int) -> None:
    """Threads list some rows each, where there are many weights, and slices join what they have listed."""
    rng = np.random.default_rng(18)
    weights = random_sparse(rng, (150 * groups, 130, 3, 3), 0.25)
    weights[60:75] = 0
    source = _kernels.SparseWeights.from_dense(150 * groups, 1170, weights)
    options = {"kernel": (3, 3), "pads": (1, 1, 1, 1), "layout": "planes", "algorithm": algorithm, "groups": groups}
    for threads in (1, 2, 5):
        pool = _kernels.ThreadPool(threads)
        op = _kernels.Conv(source, isa=isa, **options)
        for size in ((4, 4), (9, 20), (23, 11)):  # the first out of the weights, and others out of lists
            x = random_array(rng, (1, 130 * groups, *size))
            assert_close(run(pool, op, x), conv(x, weights, pads=(1, 1, 1, 1), groups=groups), 1170)
            assert op.release_source()
        assert op.source().nnz == source.nnz


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_shapes_in_rotation_are_packed_in_the_first_round_only(pool: _kernels.ThreadPool, algorithm: str) -> None:
    rng = np.random.default_rng(11)
    weights = random_sparse(rng, (64, 48, 1, 1), 0.3)
    op = _kernels.Conv(_kernels.SparseWeights.from_dense(64, 48, weights), layout="planes", algorithm=algorithm)
    inputs = [random_array(rng, (1, 48, 1, tokens)) for tokens in range(16, 144, 11)]
    first = [run(pool, op, x) for x in inputs]
    packed = op.times_packed
    for x, expected in zip(inputs, first, strict=True):
        np.testing.assert_array_equal(run(pool, op, x), expected)
    assert 1 <= op.times_packed == packed <= len(inputs)


@pytest.mark.parametrize("isa", ISAS)
def test_few_blocks_share_the_lists_of_a_product(pool: _kernels.ThreadPool, isa: str) -> None:
    """Rows that fill one, two or three blocks of lanes; lists are unpacked for other tiles."""
    rng = np.random.default_rng(12)
    weights = random_sparse(rng, (50, 700, 1, 1), 0.1)
    op = _kernels.Conv(_kernels.SparseWeights.from_dense(50, 700, weights), algorithm="single", isa=isa)
    for rows in (17, 48, 33, 16, 80, 128):
        x = random_array(rng, (rows, 700, 1, 1))
        assert_close(run(pool, op, x), conv(x, weights), 700)
        assert op.release_source()
        # Elsewhere, tiles of one block and of more have other numbers of rows side by side, or lists of single rows.
        assert rows > 48 or isa != "avx512" or op.times_packed == 1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "geometry",
    [
        {"kernel": (3, 3), "pads": (1, 1, 1, 1)},
        {"kernel": (3, 3), "pads": (1, 1, 1, 1), "stride": (2, 2)},
        {"kernel": (3, 3), "pads": (2, 2, 2, 2), "dilation": (2, 2)},
        {"kernel": (5, 5), "pads": (2, 2, 2, 2), "groups": 2},
        {"kernel": (1, 3), "pads": (0, 16, 0, 16), "dilation": (1, 16)},
        {"kernel": (1, 5), "pads": (0, 16, 0, 16), "dilation": (1, 8)},
    ],
)
def test_few_blocks_share_the_lists_of_a_convolution(
    pool: _kernels.ThreadPool, isa: str, geometry: dict[str, Any]
) -> None:
    """Up to three blocks of pixels, however high and wide; bits are those of an operator that saw no other image."""
    rng = np.random.default_rng(12)
    kernel, groups = geometry["kernel"], geometry.get("groups", 1)
    around = {name: value for name, value in geometry.items() if name != "kernel"}
    weights = random_sparse(rng, (70 * groups, 60, *kernel), 0.1)
    source = _kernels.SparseWeights.from_dense(len(weights), weights[0].size, weights)
    op = _kernels.Conv(source, layout="planes", algorithm="single", isa=isa, **geometry)
    stride = geometry.get("stride", (1, 1))[0]
    for height, width in ((4, 4), (1, 48), (6, 8), (5, 7), (3, 3), (13, 2), (1, 1)):
        x = random_array(rng, (1, 60 * groups, height * stride, width * stride))
        found = run(pool, op, x)
        assert_close(found, conv(x, weights, **around), weights[0].size)
        alone = _kernels.Conv(source, layout="planes", algorithm="single", isa=isa, **geometry)
        np.testing.assert_array_equal(found, run(pool, alone, x))
        np.testing.assert_array_equal(found, run(_kernels.ThreadPool(1), alone, x))
        # Elsewhere a block is more than one register, and narrow blocks leave fewer lanes without a pixel.
        assert isa != "avx512" or op.times_packed == 1
    assert op.release_source()
    x = random_array(rng, (1, 60 * groups, 20, 20))
    assert_close(run(pool, op, x), conv(x, weights, **around), weights[0].size)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("groups", "kernel", "layout"), [(1, 3, "planes"), (2, 3, "planes"), (1, 1, "images16")])
def test_dense_weights_are_packed_once_for_tiles_of_any_size(
    pool: _kernels.ThreadPool, isa: str, groups: int, kernel: int, layout: str
) -> None:
    """Slices of a tile are parts of the same rows; those of many channels are shorter for large tiles."""
    rng = np.random.default_rng(12)
    rows, channels, pads = 37 * groups, 900 if kernel == 1 else 150, (kernel // 2,) * 4
    weights = random_array(rng, (rows, channels, kernel, kernel))
    columns = channels * kernel**2
    source = _kernels.SparseWeights.from_dense(rows, columns, weights)

    def operator(source: _kernels.SparseWeights) -> _kernels.Conv:
        return _kernels.Conv(
            source, kernel=(kernel, kernel), pads=pads, groups=groups, layout=layout, algorithm="dense", isa=isa
        )

    op = operator(source)
    sizes = [(n, 1, 1) for n in (17, 33, 64, 112)] if kernel == 1 else [(1, *size) for size in ((1, 3), (5, 30))]
    inputs = [random_array(rng, (n, channels * groups, *size)) for n, *size in sizes]
    for x in inputs:
        assert_close(run(pool, op, x), conv(x, weights, pads=pads, groups=groups), columns)
        assert op.release_source()
    assert op.times_packed == 1
    again = operator(op.source())
    for x in inputs:
        np.testing.assert_array_equal(run(pool, again, x), run(pool, op, x))
    assert len({op.describe(x.shape, pool.threads)["tile"] for x in inputs}) > (
        2 if kernel == 1 and isa == "avx512" else 0
    )


def test_packings_of_many_shapes_take_a_bounded_number_of_bytes(pool: _kernels.ThreadPool) -> None:
    rng = np.random.default_rng(12)
    weights = random_sparse(rng, (200, 200, 3, 3), 0.5)
    op = _kernels.Conv(
        _kernels.SparseWeights.from_dense(200, 1800, weights),
        kernel=(3, 3),
        pads=(1, 1, 1, 1),
        layout="planes",
        algorithm="single",
    )
    most = 64 * np.count_nonzero(weights)
    shapes = [(1, 200, h, w) for h in range(1, 6) for w in range(1, 40, 5)]
    one = op.describe(shapes[0], pool.threads)["packed_bytes"]
    for shape in shapes:
        op.prepare(shape, pool.threads)
        assert op.weight_bytes <= most + 4 * 200
    assert op.times_packed * one > most
    x = random_array(rng, shapes[0])
    assert_close(run(pool, op, x), conv(x, weights, pads=(1, 1, 1, 1)), 1800)
