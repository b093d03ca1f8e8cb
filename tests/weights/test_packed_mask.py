"""Masks as bits."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_onnx.weights import packed_mask
from sift_onnx.weights.packed_mask import PackedMask
from sift_onnx.weights.sparse import SparseWeight

SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple)


@st.composite
def masks(draw):
    shape = draw(SHAPES)
    active = draw(st.lists(st.booleans(), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    return np.array(active, np.bool_).reshape(shape)


def packed(mask):
    return PackedMask.of_positions(mask.shape, np.flatnonzero(mask))


@given(masks(), st.data())
@settings(deadline=None)
def test_bits_are_those_of_the_mask(mask, data):
    found = packed(mask)
    assert found.nnz == mask.sum()
    assert np.array_equal(found.positions(), np.flatnonzero(mask))
    assert np.array_equal(PackedMask.parse(found.text(), mask.shape).bits, found.bits)
    values = np.flatnonzero(mask).astype(np.int32)
    weight = SparseWeight(mask.shape, values, values.astype(np.float32))
    assert np.array_equal(PackedMask.of_weight(weight).bits, found.bits)
    axes = data.draw(st.permutations(range(mask.ndim)))
    assert np.array_equal(found.transposed(axes).positions(), np.flatnonzero(mask.transpose(axes)))
    flat = np.where(mask, np.nan, -0.0).reshape(-1)
    pieces = (flat[i : i + 8] for i in range(0, flat.size, 8))
    assert PackedMask.of_non_zeros(mask.shape, pieces).digest() == found.digest()


def test_pieces_meet(monkeypatch):
    monkeypatch.setattr(packed_mask, "_PIECE", 16)
    mask = np.random.default_rng(0).random(100) < 0.3
    assert np.array_equal(packed(mask).positions(), np.flatnonzero(mask))
    assert np.array_equal(packed(mask).positions(8, 50), np.flatnonzero(mask[:50])[np.flatnonzero(mask[:50]) >= 8])
    assert packed(mask).nnz == mask.sum()


def test_mask_admits_what_it_has_all_of():
    mask = packed(np.array([1, 1, 0, 1, 0], np.bool_))
    assert mask.admits(packed(np.array([1, 0, 0, 1, 0], np.bool_)))
    assert not mask.admits(packed(np.array([1, 0, 0, 0, 1], np.bool_)))


def test_masks_are_small():
    mask = np.random.default_rng(0).random(1 << 20) < 0.1
    # The entropy is 0.469 bits per weight, and base 64 takes four thirds.
    assert len(packed(mask).text()) * 8 < 0.66 * mask.size
    blocks = np.kron(np.random.default_rng(0).random((256, 256)) < 0.1, np.ones((4, 4), np.bool_))
    assert len(packed(blocks).text()) * 8 < 0.2 * blocks.size


def encoded(raw):
    return base64.b64encode(zlib.compress(raw)).decode()


@pytest.mark.parametrize(
    "text",
    ["", "é", "!!", "AAAA", encoded(b""), encoded(b"a"), encoded(b"abc"), encoded(b"a\xff"), encoded(bytes(10**6))],
)
def test_damaged_text_is_refused(text):
    with pytest.raises(ValueError, match="mask"):
        PackedMask.parse(text, (2, 5))
    with pytest.raises(ValueError, match="mask"):
        PackedMask.parse(encoded(b"ab")[:-8] + text, (2, 5))
