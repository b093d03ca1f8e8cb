"""Masks in files: as a metadata entry beside dense tensors, and as sparse tensors."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from sift_onnx.errors import ModelReadError, UnsupportedError
from sift_onnx.model_files.sparse_tensors import sparse_tensor_of
from sift_onnx.weights import mask_storage
from sift_onnx.weights.mask_storage import MaskRecord, mask_records, text_of_masks
from sift_onnx.weights.masked_values import MaskedValues
from sift_onnx.weights.packed_mask import PackedMask
from sift_onnx.weights.sparse import SparseWeight, encode_positions
from sift_onnx.weights.sparse_tensors import weight_of


def header(weight, name="w"):
    data_type = helper.np_dtype_to_tensor_dtype(weight.dtype)
    return TensorProto(name=name, data_type=data_type, dims=weight.shape, doc_string="doc")


@given(st.sets(st.integers(0, 59)), st.sampled_from(["float16", "float32", "float64"]))
@settings(deadline=None)
def test_weight_comes_back_from_a_sparse_tensor(positions, dtype):
    indices = np.array(sorted(positions), np.int32)
    weight = SparseWeight((3, 4, 5), indices, (indices % 7 - 3).astype(dtype))
    tensor = sparse_tensor_of(weight, header(weight))
    found = weight_of(tensor)

    assert (tensor.values.name, tensor.values.doc_string) == ("w", "doc")
    onnx.checker.check_sparse_tensor(tensor)
    assert (found.shape, found.dtype, found.indices.dtype) == (weight.shape, weight.dtype, weight.indices.dtype)
    assert np.array_equal(found.indices, weight.indices)
    assert found.values.tobytes() == weight.values.tobytes()


def test_many_weights_are_written_in_pieces():
    indices = np.arange(0, 400_000, 2, dtype=np.int32)
    weight = SparseWeight((400_000,), indices, indices.astype(np.float32))
    assert np.array_equal(weight_of(sparse_tensor_of(weight, header(weight))).values, weight.values)


def test_type_that_readers_do_not_take_is_refused_by_name():
    weight = SparseWeight((2,), np.array([0]), np.array([1], np.int64))
    with pytest.raises(UnsupportedError, match=r"initializer 'conv.w': .*int64.*`storage='dense'`"):
        sparse_tensor_of(weight, header(weight, "conv.w"))


def sparse_tensor(values, indices, dims, index_dims=None, value_type=TensorProto.FLOAT, index_type=TensorProto.INT64):
    return onnx.SparseTensorProto(
        dims=dims,
        values=helper.make_tensor("w", value_type, [len(values)], values),
        indices=helper.make_tensor("", index_type, index_dims or [len(indices)], indices),
    )


def test_indices_per_axis_and_out_of_order_are_understood():
    by_axis = weight_of(sparse_tensor([1.0, 2.0, 0.0], [1, 2, 0, 1, 0, 0], [2, 3], [3, 2]))
    assert (by_axis.indices.tolist(), by_axis.values.tolist()) == ([0, 1, 5], [0, 2, 1])
    flat = weight_of(sparse_tensor([1.0, 2.0, 0.0], [5, 1, 0], [2, 3]))
    assert (flat.indices.tolist(), flat.values.tolist()) == ([0, 1, 5], [0, 2, 1])


def test_weight_without_active_positions_is_understood():
    assert weight_of(sparse_tensor([], [], [2, 3])).nnz == 0
    assert weight_of(sparse_tensor([], [], [2, 3], [0, 2])).nnz == 0


@pytest.mark.parametrize(
    "tensor",
    [
        sparse_tensor([1.0, 2.0], [1], [2, 3]),
        sparse_tensor([1.0], [6], [2, 3]),
        sparse_tensor([1.0], [-1], [2, 3]),
        sparse_tensor([1.0], [2**40], [2, 3]),
        sparse_tensor([1.0, 2.0], [1, 1], [2, 3]),
        sparse_tensor([1.0], [0, 3], [2, 3], [1, 2]),
        sparse_tensor([1.0], [0, 0, 0], [2, 3], [1, 3]),
        sparse_tensor([1.0], [0], [2, -3]),
        sparse_tensor([1.0], [0.0], [2, 3], index_type=TensorProto.FLOAT),
        sparse_tensor(["a"], [0], [2, 3], value_type=TensorProto.STRING),
    ],
    ids=["count", "beyond", "negative", "far", "twice", "axis", "rank", "shape", "float index", "strings"],
)
def test_damaged_sparse_tensor_is_refused_by_name(tensor):
    with pytest.raises(ModelReadError, match=r"^sparse initializer 'w' is damaged: [^\n]+$"):
        weight_of(tensor)


WEIGHT = SparseWeight((3, 3), np.array([1, 3, 8]), np.array([0.0, 1.0, -0.0]))
MASK = PackedMask.of_weight(WEIGHT)


def test_records_come_back():
    dense = SparseWeight((9,), np.array([1]), np.array([1.0]))
    text = text_of_masks({"a": MaskedValues(WEIGHT), 'b "é"': MaskedValues(dense)})
    assert mask_records(text) == {
        "a": MaskRecord((3, 3), 3, 1, bits=MASK.text()),
        'b "é"': MaskRecord((9,), 1, 1, bits=PackedMask.of_weight(dense).text()),
    }


def test_masks_of_a_huge_model_are_noted_without_their_bits(monkeypatch):
    monkeypatch.setattr(mask_storage, "_EXPLICIT_UP_TO", 8)
    nonzeros = PackedMask.of_positions((3, 3), np.array([3]))
    expected = MaskRecord((3, 3), 3, 1, digest=nonzeros.digest(), active_zeros=encode_positions([1, 8]))
    assert mask_records(text_of_masks({"a": MaskedValues(WEIGHT)})) == {"a": expected}


def test_entry_is_what_the_documentation_says():
    document = json.loads(text_of_masks({"a": MaskedValues(WEIGHT)}))
    assert document.keys() == {"version", "weights"}
    assert document["version"] == 2
    bits = np.frombuffer(zlib.decompress(base64.b64decode(document["weights"]["a"].pop("bits"))), np.uint8)
    assert np.unpackbits(bits, count=9, bitorder="little").nonzero()[0].tolist() == [1, 3, 8]
    assert document["weights"] == {"a": {"shape": [3, 3], "nnz": 3, "nonzeros": 1}}


def test_entry_of_version_1_is_read():
    assert mask_records('{"a": "", "version": "u1:"}') == {"a": MaskRecord(), "version": MaskRecord(active_zeros="u1:")}


def test_entry_of_a_version_to_come_is_refused():
    with pytest.raises(ModelReadError, match=r"version 3.*update"):
        mask_records('{"version": 3, "weights": {}}')


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"a": 1}', '{"a": null}', "nope", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"]
    + ['{"version": 2}', '{"version": 2, "weights": []}', '{"version": 2, "weights": {"a": ""}}']
    + [
        f'{{"version": 2, "weights": {{"a": {fields}}}}}'
        for fields in ('{"shape": 3}', '{"shape": [-1]}', '{"shape": [true]}', '{"nnz": 1.5}', '{"bits": 1}')
    ],
)
def test_damaged_records_are_refused(text):
    with pytest.raises(ModelReadError, match=r"^the metadata entry 'sift_onnx.masks' is damaged: [^\n]+$"):
        mask_records(text)


def test_model_without_records_has_none():
    assert mask_records(None) == {}
