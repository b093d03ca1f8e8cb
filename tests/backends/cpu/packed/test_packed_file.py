"""Files of plain values and arrays, whole and damaged."""

import errno
import hashlib

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.packed import packed_file
from sift_onnx.backends.cpu.packed.packed_file import _FIXED, DamagedFile, PackedFile, write_packed
from sift_onnx.backends.cpu.packed.stored_weights import made_weights, plain_weights

PLAN = {"steps": [1, 2.5, "x", b"y", None], "inf": float("inf")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A file's bytes, the arrays in it, and where a copy may be put."""
    path = tmp_path_factory.mktemp("packed") / "file"
    arrays = [np.arange(100, dtype=np.float32), np.zeros((0, 3), np.int64), np.arange(7, dtype=np.uint16)]
    write_packed(path, "key", PLAN, arrays)
    return path.read_bytes(), arrays, path


def read(path, key="key"):
    file = PackedFile(path, key)
    try:
        return file.plan, [file.array(i) for i in range(len(file._arrays))]
    finally:
        file.close()


def test_it_holds_what_was_written(whole):
    content, arrays, path = whole
    path.write_bytes(content)
    plan, found = read(path)
    assert plan == PLAN
    for one, other in zip(found, arrays, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_it_is_refused_for_another_model(whole):
    content, _, path = whole
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match="made from something else"):
        read(path, "another")


def test_what_the_system_refuses_to_read_is_damage(whole, monkeypatch):
    content, _, path = whole
    path.write_bytes(content)

    def refused(*_):
        raise OSError(errno.ESTALE, "Stale file handle")

    file = PackedFile(path, "key")
    monkeypatch.setattr(packed_file, "_read_at", refused)
    with pytest.raises(DamagedFile, match="Stale file handle"):
        file.array(0)
    file.close()
    with monkeypatch.context() as patch:
        patch.setattr(packed_file.os, "fstat", refused)
        with pytest.raises(DamagedFile, match="Stale file handle"):
            PackedFile(path, "key")


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_torn_or_flipped_file_is_found_out(whole, data):
    content, arrays, path = whole
    if data.draw(st.booleans(), "is cut"):
        damaged = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        at = data.draw(st.integers(0, len(content) - 1))
        damaged = bytearray(content)
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(damaged)
    try:
        plan, found = read(path)
    except DamagedFile:
        return
    # Only bytes that fill gaps may differ.
    assert plan == PLAN
    for one, other in zip(found, arrays, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "entry",
    [
        ["<f4", [1 << 40], 0, 0],
        ["<f4", [-1], 0, 0],
        ["<f4", [4], 1 << 62, 0],
        ["<f4", [4], -64, 0],
        ["|O", [1], 0, 0],
        ["<V4", [1], 0, 0],
        ["nonsense", [1], 0, 0],
        ["<f4", "4", 0, 0],
        ["<f4", [4]],
        7,
    ],
    ids=str,
)
def test_what_a_head_claims_of_arrays_is_checked(entry, whole):
    _, _, path = whole
    head = msgspec.msgpack.encode({"key": "key", "plan": PLAN, "arrays": [entry], "nbytes": 64})
    fixed = _FIXED.pack(b"sift packed\n\0", 1, len(head), hashlib.sha256(head).digest())
    size = -(-(len(fixed) + len(head)) // 64) * 64
    path.write_bytes((fixed + head).ljust(size, b"\0") + bytes(64))
    with pytest.raises(DamagedFile):
        read(path)


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 9), columns=st.sampled_from([1, 5, 70_000]), density=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_weights_come_back(rows, columns, density, seed):
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((rows, columns)).astype(np.float32) * (rng.random((rows, columns)) < density)
    weights = _kernels.SparseWeights.from_dense(rows, columns, dense)
    arrays = []
    plain = plain_weights([{3: weights}, {}], arrays)
    (part, nothing) = made_weights(msgspec.msgpack.decode(msgspec.msgpack.encode(plain)), arrays.__getitem__, 1, "")
    assert not nothing
    assert (part[3].rows, part[3].columns, part[3].nnz) == (rows, columns, weights.nnz)
    for one, other in zip(part[3].stored(), weights.stored(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("counts", "columns", "message"),
    [
        ([2, 1], [0, 1], "together"),
        ([2], [0, 1], "count for each row"),
        ([2, 0], [0, 3], "lie within"),
        ([2, 0], [1, 1], "ascend"),
        ([2, 0], [2, 1], "ascend"),
        ([2, 0], [0], "a column for each value"),
        ([1 << 31, 2], [0, 1], "together"),
    ],
)
def test_rows_that_do_not_fit_are_refused(counts, columns, message):
    for dtype in (np.uint16, np.uint32):
        with pytest.raises(ValueError, match=message):
            _kernels.SparseWeights.from_rows(
                2, 3, np.array(counts, np.uint32), np.array(columns, dtype), np.ones(2, np.float32)
            )
