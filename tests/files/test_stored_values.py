"""Tensors as they lie in a file: every data type, raw and typed, read without changing a bit."""

from __future__ import annotations

import numpy as np
import pytest
from builders import HAS_NEW_DATA_TYPES
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.errors import ModelReadError, UnsupportedError
from sift_onnx.files.data_types import bits_of, data_type_of, numpy_dtype
from sift_onnx.files.stored_values import StoredValues

# onnx before 1.19 reads the newer types as float32.
DTYPES = [
    numpy_dtype(number)
    for name, number in TensorProto.DataType.items()
    if name not in ("UNDEFINED", "STRING") and helper.tensor_dtype_to_np_dtype(number) == numpy_dtype(number)
]


def values_of(dtype):
    return np.array([[0, 1, 1], [1, 0, 1], [3, 2, 1]]).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_raw_tensor_is_read_as_it_is(dtype):
    array = values_of(dtype)
    stored = StoredValues(numpy_helper.from_array(array, "w"))

    assert stored.dtype == dtype
    assert list(stored.shape) == [3, 3]
    assert stored.is_raw
    assert stored.nbytes == len(stored.raw()) == -(-9 * bits_of(data_type_of(dtype)) // 8)
    assert stored.view().dtype == dtype
    assert stored.view().tobytes() == array.tobytes()
    assert stored.load().flags.writeable
    assert stored.tensor == stored.proto


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_typed_tensor_is_read_as_it_is(dtype):
    if dtype.kind == "c" and not HAS_NEW_DATA_TYPES:
        pytest.skip("onnx 1.16 does not read its own complex tensors")
    array = values_of(dtype)
    proto = helper.make_tensor("w", data_type_of(dtype), array.shape, array.reshape(-1))
    stored = StoredValues(proto)

    assert stored.dtype == dtype
    assert not stored.is_raw
    assert stored.view().dtype == dtype
    assert stored.view().tobytes() == array.tobytes()
    assert stored.tensor == proto


def test_strings_are_read():
    stored = StoredValues(helper.make_tensor("s", TensorProto.STRING, [2], [b"a", "é".encode()]))
    assert stored.view().tolist() == ["a", "é"]
    assert not stored.is_raw
    assert stored.nbytes == 3


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2)])
def test_scalars_and_empty_tensors_are_read(shape):
    array = np.ones(shape, np.float32)
    assert np.array_equal(StoredValues(numpy_helper.from_array(array, "w")).view(), array)
    assert StoredValues(numpy_helper.from_array(array, "w")).view().shape == shape


def test_data_that_lies_elsewhere_is_put_inside_the_tensor_that_others_see():
    whole = numpy_helper.from_array(values_of("float32"), "w")
    whole.doc_string = "kept"
    stub = TensorProto()
    stub.CopyFrom(whole)
    stub.ClearField("raw_data")
    stub.data_location = TensorProto.EXTERNAL
    stub.external_data.add(key="location", value="x")
    stored = StoredValues(stub, lambda: np.frombuffer(whole.raw_data, np.uint8))

    assert stored.tensor == whole
    assert np.array_equal(stored.view(), values_of("float32"))
    assert stub.data_location == TensorProto.EXTERNAL


def test_array_is_aligned_wherever_the_data_lies():
    raw = np.frombuffer(b"." + values_of("float64").tobytes(), np.uint8)[1:]
    stored = StoredValues(numpy_helper.from_array(values_of("float64"), "w"), lambda: raw)
    assert stored.view().flags.aligned
    assert np.array_equal(stored.view(), values_of("float64"))


def damaged(**fields):
    tensor = TensorProto(name="conv.weight", data_type=TensorProto.FLOAT, dims=[2, 2], raw_data=bytes(16))
    for name, value in fields.items():
        tensor.ClearField(name)
        if isinstance(value, list):
            getattr(tensor, name).extend(value)
        elif value is not None:
            setattr(tensor, name, value)
    return tensor


@pytest.mark.parametrize(
    "fields",
    [
        {"raw_data": bytes(15)},
        {"raw_data": bytes(20)},
        {"raw_data": None},
        {"raw_data": None, "float_data": [1.0, 2.0, 3.0]},
        {"raw_data": None, "int32_data": [1, 2, 3, 4]},
        {"dims": [2**40, 2**40]},
        {"dims": [-2, -2]},
        {"data_type": TensorProto.STRING},
        {"data_type": TensorProto.INT4},
        {"data_type": TensorProto.COMPLEX64},
    ],
    ids=str,
)
def test_tensor_without_the_right_amount_of_data_is_refused(fields):
    with pytest.raises(ModelReadError, match=r"^initializer 'conv.weight': [^\n]+$"):
        StoredValues(damaged(**fields))


@pytest.mark.parametrize("data_type", [0, 99])
def test_unknown_data_type_is_refused(data_type):
    with pytest.raises(UnsupportedError, match="data type"):
        StoredValues(damaged(data_type=data_type))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_data_types_and_dtypes_are_inverse(dtype):
    assert numpy_dtype(data_type_of(dtype)) == dtype


def test_every_data_type_of_this_onnx_has_a_dtype():
    for name, number in TensorProto.DataType.items():
        if name == "UNDEFINED":
            continue
        dtype = numpy_dtype(number)
        assert data_type_of(dtype) == number
        assert bits_of(number) == 0 or 0 < bits_of(number) <= 8 * dtype.itemsize


@pytest.mark.parametrize("dtype", ["datetime64[s]", "V4", "timedelta64[s]"])
def test_dtype_that_onnx_lacks_is_refused(dtype):
    with pytest.raises(UnsupportedError, match="dtype"):
        data_type_of(np.dtype(dtype))


def test_more_axes_than_arrays_have_are_refused():
    with pytest.raises(UnsupportedError, match="40 axes"):
        StoredValues(TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1] * 40, raw_data=bytes(4)))


def test_segments_of_tensors_are_refused():
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], float_data=[1.0])
    tensor.segment.begin = 0
    with pytest.raises(UnsupportedError, match="segment"):
        StoredValues(tensor)
