"""Arrays as callers have them: what is read is copied where it must be, what is written is refused by its name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sift_onnx.backends.cpu import _kernels

SHAPE = (2, 3, 4, 5)
COUNT = 120


def misaligned(array: Any) -> Any:
    """The same values, one byte behind where a float may begin."""
    memory = np.empty(array.nbytes + 65, np.uint8)
    skip = -memory.ctypes.data % 64 + 1
    found = memory[skip : skip + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    assert not found.flags.aligned
    return found


def fortran(array: Any) -> Any:
    return np.asfortranarray(array)


def spread(array: Any) -> Any:
    return np.repeat(array, 2, axis=-1)[..., ::2]


def read_only(array: Any) -> Any:
    array = array.copy()
    array.flags.writeable = False
    return array


def doubles(array: Any) -> Any:
    return array.astype(np.float64)


def big_endian(array: Any) -> Any:
    return array.astype(">f4")


@pytest.fixture
def x() -> Any:
    return np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(1)


@pytest.mark.parametrize("kind", [misaligned, fortran, spread, read_only, doubles])
def test_operators_read_any_array(pool: _kernels.ThreadPool, x: Any, kind: Any) -> None:
    y = np.empty_like(x)
    _kernels.Elementwise("add", layout="planes").run(pool, SHAPE, kind(x), y, kind(x))
    np.testing.assert_array_equal(y, 2 * x)


@pytest.mark.parametrize("kind", [misaligned, fortran, spread, doubles])
def test_weights_are_read_from_any_array(pool: _kernels.ThreadPool, kind: Any) -> None:
    rng = np.random.default_rng(1)
    dense, bias = rng.standard_normal((6, 8)).astype(np.float32), rng.standard_normal(6).astype(np.float32)
    indices = misaligned(np.arange(48, dtype=np.int64))
    x, y = rng.standard_normal((4, 8)).astype(np.float32), np.empty((4, 6), np.float32)
    assert _kernels.count_weights(kind(dense)) == (48, True)
    for weights in (
        _kernels.SparseWeights.from_dense(6, 8, kind(dense)),
        _kernels.SparseWeights.from_indices(6, 8, indices, kind(dense).reshape(-1)),
        _kernels.SparseWeights.from_dense(6, 8, dense).scaled(kind(np.ones((6, 1), np.float32))),
    ):
        _kernels.Matmul(weights, kind(bias.reshape(1, 6))).run(pool, (4, 8, 1, 1), x, y)
        np.testing.assert_allclose(y, x @ dense.T + bias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [misaligned, fortran, spread, read_only, doubles, big_endian])
def test_operators_write_to_no_copy(pool: _kernels.ThreadPool, x: Any, kind: Any) -> None:
    out = kind(np.zeros_like(x))
    with pytest.raises((TypeError, ValueError), match="out"):
        _kernels.Elementwise("first", layout="planes").run(pool, SHAPE, x, out)
    assert not out.any()


def copying() -> _kernels.Sequence:
    """From the first of the caller's arrays to the second."""
    op = _kernels.Elementwise("first", layout="planes")
    return _kernels.Sequence([(op, SHAPE, (0, 0), (None, None, None), (1, 0))], 0, [COUNT, COUNT])


@pytest.mark.parametrize("kind", [misaligned, fortran, spread, doubles, big_endian])
def test_a_sequence_names_the_array_that_it_cannot_take(pool: _kernels.ThreadPool, x: Any, kind: Any) -> None:
    out = np.zeros_like(x)
    with pytest.raises(ValueError, match="array 0 must be an aligned, C-contiguous array of float32"):
        copying().run(pool, _kernels.Workspace(), [kind(x), out])
    with pytest.raises(ValueError, match="array 1 must be a writable, aligned, C-contiguous array of float32"):
        copying().run(pool, _kernels.Workspace(), [x, kind(out)])


def test_a_sequence_writes_to_writable_arrays_alone(pool: _kernels.ThreadPool, x: Any) -> None:
    out = np.zeros_like(x)
    copying().run(pool, _kernels.Workspace(), [read_only(x), out])
    np.testing.assert_array_equal(out, x)
    with pytest.raises(ValueError, match="array 1 must be a writable"):
        copying().run(pool, _kernels.Workspace(), [x, read_only(out)])


def test_a_sequence_wants_times_of_its_own_kind(pool: _kernels.ThreadPool, x: Any) -> None:
    with pytest.raises(TypeError):
        copying().run(pool, _kernels.Workspace(), [x, np.zeros_like(x)], np.zeros(1, np.float32))


@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize("written", [False, True])
def test_a_sequence_refuses_lanes_that_are_not_aligned(pool: _kernels.ThreadPool, offset: int, written: bool) -> None:
    memory = np.zeros(16 * 9 + 48, np.float32)
    skip = -memory.ctypes.data % 64 // 4
    array = memory[skip : skip + 16 * 9 + 16]
    op = _kernels.Elementwise("first", layout="images16")
    inside, scratch, none = (0, offset), (-1, 0), (None, None, None)
    places = (scratch, none, inside) if written else (inside, none, scratch)
    sequence = _kernels.Sequence([(op, (16, 9, 1, 1), *places)], 16 * 9, [array.size])
    if offset == 0:
        sequence.run(pool, _kernels.Workspace(), [array])
        return
    with pytest.raises(ValueError, match="a tensor in images16 or quads must be aligned to 64 bytes; in array 0"):
        sequence.run(pool, _kernels.Workspace(), [array])
