"""Operators of int8 in sequences, beside those of floats."""

from __future__ import annotations

import numpy as np
import pytest
from quad_reference import aligned_words, integer_conv, quads_words, requantize, to_quads

from sift_onnx.backends.cpu import _kernels

SHAPE = (1, 5, 3, 7)
PLACES = (None, None, None)


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_arrays_of_bytes_are_counted_in_words(pool: _kernels.ThreadPool, dtype: type[np.generic]) -> None:
    """105 bytes are 27 words, and not one byte past the last is written."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, SHAPE, np.uint8)
    weights = rng.integers(-9, 9, (5, 5, 1, 1), np.int8)
    conv = _kernels.QuantizedConv(
        _kernels.QuadWeights(weights), None, np.float32([0.01]), input_zero_point=128, zero_point=128
    )
    signed = dtype is np.int8
    words = quads_words(SHAPE)
    steps = [
        (_kernels.ReorderBytes(to_quads=True, is_signed=signed), SHAPE, (0, 0), PLACES, (-1, 0)),
        (conv, SHAPE, (-1, 0), PLACES, (-1, words)),
        (_kernels.ReorderBytes(to_quads=False, is_signed=signed), SHAPE, (-1, words), PLACES, (1, 0)),
    ]
    sequence = _kernels.Sequence(steps, 2 * words, [27, 27])
    expected = requantize(integer_conv(x, weights, 128), np.float32([0.01]), 128)
    flip = 0x80 if signed else 0
    memory = np.full(x.size + 3, 0x77, np.uint8)
    out = memory[: x.size].view(dtype)
    sequence.run(pool, _kernels.Workspace(), [(x ^ flip).view(dtype), out])
    np.testing.assert_array_equal(out.view(np.uint8).reshape(SHAPE) ^ flip, expected)
    assert (memory[x.size :] == 0x77).all()
    with pytest.raises(ValueError, match="array 1 has 2 words of four bytes, not 27"):
        sequence.run(pool, _kernels.Workspace(), [x, np.zeros(8, np.uint8)])
    frozen = np.zeros(x.size, np.uint8)
    frozen.setflags(write=False)
    with pytest.raises(ValueError, match="array 1 must be a writable"):
        sequence.run(pool, _kernels.Workspace(), [x, frozen])


def test_quads_in_an_array_are_aligned(pool: _kernels.ThreadPool) -> None:
    words = quads_words(SHAPE)
    step = (_kernels.QuadTable(np.arange(256, dtype=np.uint8)), SHAPE, (0, 0), PLACES, (1, 0))
    sequence = _kernels.Sequence([step], 0, [words, words])
    x = to_quads(np.arange(105, dtype=np.uint8).reshape(SHAPE))
    out = aligned_words(words)
    sequence.run(pool, _kernels.Workspace(), [x, out])
    np.testing.assert_array_equal(out.view(np.uint8), x.view(np.uint8))
    with pytest.raises(ValueError, match="aligned to 64 bytes; in array 1"):
        sequence.run(pool, _kernels.Workspace(), [x, aligned_words(words + 1)[1:]])
    with pytest.raises(ValueError, match="a tensor is not aligned"):
        _kernels.Sequence([(*step[:4], (-1, 8))], 8 + words, [words])


def test_a_tensor_of_quads_is_as_large_as_its_words() -> None:
    words = quads_words(SHAPE)
    step = (_kernels.QuadTable(np.arange(256, dtype=np.uint8)), SHAPE, (0, 0), PLACES, (1, 0))
    with pytest.raises(ValueError, match="does not fit in its place"):
        _kernels.Sequence([step], 0, [words, words - 1])


def test_a_run_without_an_operand_that_is_added_is_refused(pool: _kernels.ThreadPool) -> None:
    quantization = (np.float32(1), 0)
    words = quads_words(SHAPE)
    step = (_kernels.QuadAdd((quantization,) * 3), SHAPE, (0, 0), PLACES, (1, 0))
    sequence = _kernels.Sequence([step], 0, [words, words])
    with pytest.raises(ValueError, match="no second operand"):
        sequence.run(pool, _kernels.Workspace(), [aligned_words(words), aligned_words(words)])
