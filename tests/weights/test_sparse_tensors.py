"""ONNX sparse tensors as masked weights: what is understood, and what is refused."""

from __future__ import annotations

import onnx
import pytest
from onnx import SparseTensorProto, TensorProto, helper

from sift_onnx.errors import ModelReadError
from sift_onnx.weights.sparse_tensors import weight_of


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


def sparse(dims, indices, count=None, kind=TensorProto.INT64, shape=None):
    tensor = SparseTensorProto(dims=dims)
    tensor.values.name, tensor.values.data_type = "w", TensorProto.FLOAT
    count = len(indices) if count is None else count
    tensor.values.dims.append(count)
    tensor.values.float_data.extend([1.0] * count)
    tensor.indices.data_type = kind
    tensor.indices.dims.extend(shape or [len(indices)])
    tensor.indices.int64_data.extend(indices)
    return tensor


@pytest.mark.parametrize(
    "tensor",
    [
        sparse([4, 4], [3, 16]),
        sparse([4, 4], [-1, 3]),
        sparse([4, 4], [3, 3]),
        sparse([4, 4], [2**63 - 1]),
        sparse([4, 4], [-(2**63)]),
        sparse([4, -4], [1]),
        sparse([4, 4], [1, 2], count=1),
        sparse([4, 4], [0, 1, 4, 0], count=2, shape=[2, 2]),
        sparse([4, 4], [0, -1, 1, 0], count=2, shape=[2, 2]),
        sparse([4, 4], [0, 1, 2], count=1, shape=[1, 3]),
        sparse([2**20, 2**20, 2**20], [5]),
        sparse([2**31, 2**31, 2**31], [5]),
        sparse([2**62, 0], [0]),
        sparse([0], [0]),
        sparse([1] * 3000, [0]),
        sparse([2**29], []),
    ],
)
def test_what_cannot_be_is_refused(tensor):
    with pytest.raises(ModelReadError, match="'w' is damaged"):
        weight_of(tensor)


def test_indices_in_any_order_are_sorted():
    weight = weight_of(sparse([4, 4], [9, 2, 5]))
    assert weight.indices.tolist() == [2, 5, 9]


def test_one_in_a_thousand_of_a_large_tensor_is_taken():
    assert weight_of(sparse([1000, 100_000], list(range(0, 100_000_000, 1000)))).nnz == 100_000
