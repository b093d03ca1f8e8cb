"""Masked weights as ONNX sparse tensors that are read again."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from sift_onnx.errors import UnsupportedError
from sift_onnx.model_files.sparse_tensors import sparse_tensor_of
from sift_onnx.weights.sparse import SparseWeight
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
