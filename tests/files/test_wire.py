"""Large data is cut out of a serialized model, and nothing else changes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import linear, random_weight, tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.files.wire import DataLocation, cut_out_data, key, packed_field, padded_varints, unpacked_varints, varint

SMALL, LARGE = random_weight(2, 2), random_weight(20, 30)


RAW = TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number


def restored(data, content, cut):
    model = onnx.ModelProto.FromString(content)
    for place, where in cut.items():
        tensor = (model.graph.sparse_initializer if place.part else model.graph.initializer)[place.position]
        tensor = getattr(tensor, place.part) if place.part else tensor
        assert place.field not in [field.number for field, _ in tensor.ListFields()]
        tensor.MergeFromString(packed_field(place.field, data[where.start : where.stop]))
    return model


def sparse_model(count=400, dtype=TensorProto.FLOAT):
    """A sparse initializer between dense ones, all of its data in typed fields."""
    model = linear({"v": LARGE, "w": LARGE.T})
    sparse = model.graph.sparse_initializer.add(dims=[count, 7])
    sparse.values.CopyFrom(helper.make_tensor("s", dtype, [count], np.arange(count)))
    sparse.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, [count], np.arange(count) * 7))
    return model


def test_large_raw_data_is_cut_out_and_small_data_stays():
    model = tensors(*(numpy_helper.from_array(w, f"w{i}") for i, w in enumerate([SMALL, LARGE, SMALL, LARGE])))
    model.graph.initializer[3].doc_string = "after the data in the stream"
    data = model.SerializeToString()
    content, cut = cut_out_data(data, 1000)

    assert list(cut) == [DataLocation(1, "", RAW), DataLocation(3, "", RAW)]
    where = cut[DataLocation(1, "", RAW)]
    assert data[where.start : where.stop] == LARGE.tobytes()
    assert len(content) < 1000
    assert restored(data, content, cut) == model


def test_data_in_typed_fields_stays():
    values = helper.make_tensor("w", TensorProto.FLOAT, LARGE.shape, LARGE.reshape(-1))
    data = tensors(values).SerializeToString()
    assert restored(data, *cut_out_data(data, 16)) == onnx.ModelProto.FromString(data)
    assert cut_out_data(data, 16)[1] == {}


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_typed_data_of_sparse_tensors_is_cut_out(dtype):
    model = sparse_model(dtype=dtype)
    data = model.SerializeToString()
    content, cut = cut_out_data(data, 500)

    assert [place[:2] for place in cut] == [(0, ""), (1, ""), (0, "values"), (0, "indices")]
    assert len(content) < 500
    assert restored(data, content, cut) == model


def test_sparse_tensors_that_are_not_laid_out_as_usual_stay():
    name = TensorProto(name="s", data_type=TensorProto.FLOAT, dims=[400]).SerializeToString()
    packed = TensorProto(float_data=np.arange(400)).SerializeToString()
    one_by_one = b"".join(bytes([4 << 3 | 5]) + np.float32(i).tobytes() for i in range(400))
    whole = packed_field(1, name + packed)
    for sparse in (whole + whole, packed_field(1, name + one_by_one), packed_field(1, name + packed + one_by_one)):
        graph = packed_field(15, sparse)
        data = packed_field(7, graph)
        assert cut_out_data(data, 100) == (data, {})
        assert onnx.ModelProto.FromString(data).graph.sparse_initializer[0].values.float_data[1] == 1


def test_fields_that_this_onnx_does_not_know_stay():
    data = linear({"w": LARGE}).SerializeToString() + key(1000) + varint(3) + b"abc" + b"\xf8\x3e\x01"
    content, cut = cut_out_data(data, 16)
    assert list(cut) == [DataLocation(0, "", RAW)]
    assert content.endswith(key(1000) + varint(3) + b"abc" + b"\xf8\x3e\x01")


def test_model_in_parts_is_left_for_protobuf_to_merge():
    whole = linear({"v": LARGE, "w": LARGE.T})
    rest = onnx.ModelProto()
    rest.graph.initializer.append(whole.graph.initializer.pop())
    data = whole.SerializeToString() + rest.SerializeToString()
    content, cut = cut_out_data(data, 16)
    assert (content, cut) == (data, {})


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, b"\x3a", b"\x3a\x05ab", b"\x0b\x0c", b"<!DOCTYPE html>"])
def test_what_is_no_model_is_left_as_it_is(data):
    content, cut = cut_out_data(data, 16)
    assert content == data or onnx.ModelProto.FromString(content)
    assert cut == {}


@given(st.data())
@settings(deadline=None)
def test_damage_is_seen_by_protobuf_as_without_the_cut(data):
    model = data.draw(st.sampled_from([linear({"v": LARGE[:4, :4], "w": LARGE[:4, :4]}), sparse_model(20)]))
    whole = bytearray(model.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(whole[: data.draw(st.integers(0, len(whole)))])

    content, cut = cut_out_data(damaged, 16)
    try:
        expected = onnx.ModelProto.FromString(damaged)
    except Exception:
        with pytest.raises(type_of_decoding_error()):
            restored(damaged, content, cut)
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


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(0, 9))
def test_numbers_are_unpacked_as_protobuf_packs_them(numbers, missing):
    field = TensorProto(int64_data=numbers).SerializeToString()
    length = next(n for n in range(len(field)) if len(packed_field(7, field[len(field) - n :])) == len(field))
    data = np.frombuffer(field[len(field) - length :], np.uint8)
    found, used = unpacked_varints(data)
    assert (found.tolist(), used) == (numbers, data.size)

    found, used = unpacked_varints(data[: max(0, data.size - missing)])
    assert found.tolist() == numbers[: found.size]
    assert unpacked_varints(data[used:])[0].tolist() == numbers[found.size :]


@given(st.lists(st.integers(0, 2**21 - 1)), st.integers(3, 9))
def test_padded_numbers_are_unpacked(numbers, width):
    data = padded_varints(np.array(numbers, np.int64), width).reshape(-1)
    found, used = unpacked_varints(data)
    assert (found.tolist(), used) == (numbers, data.size)


def test_number_that_does_not_end_is_refused():
    for data in (b"\x80" * 11, b"\x01" + b"\xff" * 10 + b"\x01"):
        with pytest.raises(ValueError, match="64 bits"):
            unpacked_varints(np.frombuffer(data, np.uint8))
