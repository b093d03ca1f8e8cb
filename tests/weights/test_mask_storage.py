"""The metadata entry for masks of densely stored weights."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np
import pytest

from sift_onnx.errors import ModelReadError
from sift_onnx.weights import mask_storage
from sift_onnx.weights.mask_storage import MaskRecord, mask_records, text_of_masks
from sift_onnx.weights.masked_values import MaskedValues
from sift_onnx.weights.packed_mask import PackedMask
from sift_onnx.weights.sparse import SparseWeight, encode_positions

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
