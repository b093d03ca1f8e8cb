"""Raw data is cut out of a serialized model, and nothing else changes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import linear, random_weight, tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.files.wire import cut_out_raw_data, key, varint

SMALL, LARGE = random_weight(2, 2), random_weight(20, 30)


def restored(data, content, cut):
    model = onnx.ModelProto.FromString(content)
    for position, place in cut.items():
        assert not model.graph.initializer[position].HasField("raw_data")
        model.graph.initializer[position].raw_data = data[place.start : place.stop]
    return model


def test_large_raw_data_is_cut_out_and_small_data_stays():
    model = tensors(*(numpy_helper.from_array(w, f"w{i}") for i, w in enumerate([SMALL, LARGE, SMALL, LARGE])))
    model.graph.initializer[3].doc_string = "after the data in the stream"
    data = model.SerializeToString()
    content, cut = cut_out_raw_data(data, 1000)

    assert list(cut) == [1, 3]
    assert data[cut[1].start : cut[1].stop] == LARGE.tobytes()
    assert len(content) < 1000
    assert restored(data, content, cut) == model


def test_data_in_typed_fields_stays():
    values = helper.make_tensor("w", TensorProto.FLOAT, LARGE.shape, LARGE.reshape(-1))
    data = tensors(values).SerializeToString()
    assert restored(data, *cut_out_raw_data(data, 16)) == onnx.ModelProto.FromString(data)
    assert cut_out_raw_data(data, 16)[1] == {}


def test_fields_that_this_onnx_does_not_know_stay():
    data = linear({"w": LARGE}).SerializeToString() + key(1000) + varint(3) + b"abc" + b"\xf8\x3e\x01"
    content, cut = cut_out_raw_data(data, 16)
    assert list(cut) == [0]
    assert content.endswith(key(1000) + varint(3) + b"abc" + b"\xf8\x3e\x01")


def test_model_in_parts_is_left_for_protobuf_to_merge():
    whole = linear({"v": LARGE, "w": LARGE.T})
    rest = onnx.ModelProto()
    rest.graph.initializer.append(whole.graph.initializer.pop())
    data = whole.SerializeToString() + rest.SerializeToString()
    content, cut = cut_out_raw_data(data, 16)
    assert (content, cut) == (data, {})


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, b"\x3a", b"\x3a\x05ab", b"\x0b\x0c", b"<!DOCTYPE html>"])
def test_what_is_no_model_is_left_as_it_is(data):
    content, cut = cut_out_raw_data(data, 16)
    assert content == data or onnx.ModelProto.FromString(content)
    assert cut == {}


@given(st.data())
@settings(deadline=None)
def test_damage_is_seen_by_protobuf_as_without_the_cut(data):
    whole = bytearray(linear({"v": LARGE[:4, :4], "w": LARGE[:4, :4]}).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(whole[: data.draw(st.integers(0, len(whole)))])

    content, cut = cut_out_raw_data(damaged, 16)
    try:
        expected = onnx.ModelProto.FromString(damaged)
    except Exception:
        with pytest.raises(type_of_decoding_error()):
            onnx.ModelProto.FromString(content)
        return
    assert restored(damaged, content, cut).SerializeToString() == expected.SerializeToString()


def type_of_decoding_error():
    from google.protobuf.message import DecodeError

    return DecodeError


@given(st.integers(0, 2**64 - 1))
def test_numbers_are_written_as_protobuf_writes_them(n):
    tensor = TensorProto(dims=[n - 2**64 if n >= 2**63 else n])
    assert tensor.SerializeToString() == b"\x08" + varint(n)


def test_length_of_the_largest_tensor_fits():
    assert varint(2**31) == b"\x80\x80\x80\x80\x08"
    assert np.prod(LARGE.shape) > 1
