"""Constants of a graph: dense, stored and masked, as this package and graphsurgeon's users see them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs
import pytest
from builders import HAS_NEW_DATA_TYPES, linear, mask_weights, random_weight
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper

from sift_onnx.errors import UnsupportedError
from sift_onnx.files.stored_values import StoredValues
from sift_onnx.graphs import constant_tensors
from sift_onnx.graphs.constant_tensors import byte_chunks, full_tensor, has_raw_bytes, header_of
from sift_onnx.graphs.constants import (
    MaskedConstant,
    array_of,
    nbytes_of,
    nnz_of,
    replace_values,
    shape_of,
    sparse_weight_of,
)
from sift_onnx.model import Model
from sift_onnx.weights.masked_values import DenseUnderMask, MaskedValues
from sift_onnx.weights.sparse import SparseWeight, encode_positions

DENSE = np.array([[0, 1, 0], [2, 0, -0.0]], np.float32)
ZEROS = np.array([2, 5])
WEIGHT = SparseWeight.from_dense(DENSE, ZEROS)


def masked(values=None, name="w"):
    constant = gs.Constant(name, DENSE)
    replace_values(constant, WEIGHT if values is None else values)
    return constant


def stored_masked():
    proto = numpy_helper.from_array(DENSE, "w")
    return masked(DenseUnderMask(StoredValues(proto), active_zeros=encode_positions(ZEROS)))


@pytest.mark.parametrize("make", [masked, stored_masked])
def test_masked_constant_shows_its_dense_values_and_keeps_its_mask(make):
    constant = make()
    assert np.array_equal(constant.values, DENSE)
    assert (shape_of(constant), constant.dtype, nbytes_of(constant)) == ((2, 3), np.float32, 24)
    assert np.array_equal(array_of(constant), DENSE)
    assert np.array_equal(sparse_weight_of(constant).indices, [1, 2, 3, 5])
    assert nnz_of(constant) == 4
    assert constant.weight.active_zeros().tolist() == ZEROS.tolist()


@pytest.mark.parametrize("make", [masked, stored_masked])
def test_writing_into_the_dense_values_is_refused_since_it_would_be_lost(make):
    with pytest.raises(ValueError, match="read-only"):
        make().values[0, 0] = 3


@pytest.mark.parametrize("make", [masked, stored_masked])
def test_new_values_keep_active_zeros_active_and_prune_what_became_zero(make):
    constant = make()
    new = DENSE * 2
    new[0, 0], new[0, 1] = 7, 0
    constant.values = new

    assert isinstance(constant, MaskedConstant)
    assert np.array_equal(constant.values, new)
    assert sparse_weight_of(constant).indices.tolist() == [0, 2, 3, 5]
    assert sparse_weight_of(constant).active_zeros().tolist() == [2, 5]


def test_new_values_of_another_shape_have_the_mask_of_their_non_zeros():
    constant = masked()
    constant.values = np.array([0, 3, 0], np.float64)
    assert (sparse_weight_of(constant).shape, sparse_weight_of(constant).indices.tolist()) == ((3,), [1])


def test_new_values_may_be_a_sparse_weight_or_stored():
    constant = masked()
    constant.values = SparseWeight((2,), np.array([1]), np.array([0.0]))
    assert nnz_of(constant) == 1
    constant.values = StoredValues(numpy_helper.from_array(DENSE, "other"))
    assert nnz_of(constant) == 2
    constant.values = MaskedValues(WEIGHT)
    assert nnz_of(constant) == 4


def test_mask_survives_what_graphsurgeon_does_to_a_graph():
    model = mask_weights(Model.load(linear({"v": random_weight(4, 4), "w": random_weight(4, 4, seed=1)})))
    expected = {n: c.weight for n, c in model.masked().items()}
    graph = model.graph.copy().cleanup().toposort().fold_constants()

    found = Model.load(graph).masked()
    assert found.keys() == expected.keys() == {"v", "w"}
    for name, constant in found.items():
        assert constant.weight is expected[name]


def test_graphsurgeon_exports_a_masked_constant_as_its_dense_values():
    model = mask_weights(Model.load(linear({"w": random_weight(4, 4)})))
    tensor = gs.export_onnx(model.graph).graph.initializer[0]
    assert tensor.name == "w"
    assert np.array_equal(numpy_helper.to_array(tensor), model.masked()["w"].values)


def test_masked_constant_becomes_a_variable():
    constant = masked()
    constant.to_variable(np.float32, [2, 3])
    assert type(constant) is gs.Variable


def test_damaged_list_of_active_zeros_is_refused_at_once():
    proto = StoredValues(numpy_helper.from_array(DENSE, "w"))
    for text in ("u1:!", encode_positions([6])):
        with pytest.raises(ValueError, match="positions"):
            DenseUnderMask(proto, active_zeros=text)


def test_weight_without_a_mask_counts_its_non_zeros_and_all_of_a_zero_tensor():
    assert nnz_of(gs.Constant("w", DENSE)) == 2
    assert nnz_of(gs.Constant("w", np.zeros(5, np.float32))) == 5
    assert sparse_weight_of(gs.Constant("w", DENSE)) is None


def bytes_of(constant):
    # Copied one by one: a piece is valid until the next one is asked for.
    return b"".join([bytes(piece) for piece in byte_chunks(constant)])


@pytest.mark.parametrize("chunk", [1, 4, 8, 12, 1000])
def test_pieces_of_a_masked_weight_are_the_bytes_of_its_dense_tensor(chunk, monkeypatch):
    monkeypatch.setattr(constant_tensors, "_CHUNK_BYTES", chunk)
    assert bytes_of(masked()) == WEIGHT.to_dense().tobytes()
    assert bytes_of(stored_masked()) == DENSE.tobytes()


@given(st.integers(0, 40), st.sets(st.integers(0, 39)), st.integers(1, 60))
@settings(deadline=None)
def test_pieces_are_the_whole_whatever_the_sizes(size, positions, chunk):
    indices = np.array(sorted(p for p in positions if p < size), np.int32)
    weight = SparseWeight((size,), indices, np.arange(1, indices.size + 1, dtype=np.float16))
    before, constant_tensors._CHUNK_BYTES = constant_tensors._CHUNK_BYTES, chunk
    try:
        assert bytes_of(masked(weight)) == weight.to_dense().tobytes()
    finally:
        constant_tensors._CHUNK_BYTES = before


ARRAYS = {
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "every other": np.arange(12, dtype=np.int64)[::2],
    "big-endian": np.arange(6, dtype=">f4"),
    "scalar": np.array(3.5),
    "empty": np.empty((0, 3), np.float32),
    "bool": np.array([True, False]),
    "complex": np.array([1 + 2j], np.complex64),
    "bfloat16": np.arange(4).astype(ml_dtypes.bfloat16),
    "float8": np.arange(4).astype(ml_dtypes.float8_e4m3fn),
    "int4": np.arange(5).astype(ml_dtypes.int4),
    "strings": np.array(["a", "bc"], dtype=object),
    "fixed-width strings": np.array(["a", "bc"]),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_array_is_written_as_onnx_has_it(kind):
    if kind == "int4" and not HAS_NEW_DATA_TYPES:
        pytest.skip("onnx 1.19")
    array = ARRAYS[kind]
    tensor = full_tensor(gs.Constant("w", array))
    assert tensor.name == "w"
    assert numpy_helper.to_array(tensor).shape == array.shape
    assert np.array_equal(numpy_helper.to_array(tensor).astype(array.dtype), array)

    constant = gs.Constant("w", array)
    header = header_of(constant)
    assert (header.data_type, list(header.dims)) == (tensor.data_type, list(tensor.dims))
    assert has_raw_bytes(constant) == tensor.HasField("raw_data") or kind == "int4"
    if has_raw_bytes(constant):
        assert bytes_of(constant) == tensor.raw_data
        assert nbytes_of(constant) == len(tensor.raw_data)


def test_array_that_onnx_cannot_hold_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="initializer 'when'"):
        full_tensor(gs.Constant("when", np.zeros(1, "datetime64[s]")))


def test_export_dtype_of_a_graphsurgeon_constant_is_honoured():
    if not hasattr(gs.Constant("w", DENSE), "_export_dtype"):
        pytest.skip("graphsurgeon 0.5.3")
    graph = Model.load(linear({"w": random_weight(4, 4)})).graph
    constant = gs.Constant("w", random_weight(4, 4), export_dtype=TensorProto.BFLOAT16)
    graph.nodes[0].inputs[1] = constant
    assert Model.load(graph).to_proto().graph.initializer[0].data_type == TensorProto.BFLOAT16


@pytest.mark.parametrize("form", [header_of, full_tensor])
def test_description_of_a_masked_weight_is_written_once(form):
    known = numpy_helper.from_array(DENSE, "w")
    known.doc_string = "doc"
    if not hasattr(known, "metadata_props"):
        pytest.skip("onnx 1.16")
    known.metadata_props.add(key="key", value="value")
    constant = masked(DenseUnderMask(StoredValues(known), active_zeros=encode_positions(ZEROS)))
    tensor = form(constant, known)
    assert (tensor.doc_string, list(tensor.metadata_props)) == ("doc", list(known.metadata_props))
