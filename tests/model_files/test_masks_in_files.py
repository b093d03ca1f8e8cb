"""Masks in model files, in both storages, and after other tools have rewritten the file."""

from __future__ import annotations

import json
import os

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir
import onnxruntime
import pytest
from builders import LARGE, SMALL, branches, linear, mask_weights, random_weight, small_and_large
from onnx import TensorProto, helper, numpy_helper
from saved_files import masked_twice, outputs

import sift_onnx
from sift_onnx.errors import MaskWarning, ModelReadError, UnsupportedError, UsageError
from sift_onnx.model import Model
from sift_onnx.weights.mask_storage import MASKS_KEY, mask_records
from sift_onnx.weights.sparse import encode_positions


@pytest.fixture
def proto():
    return small_and_large()


@pytest.fixture
def masked(proto):
    return masked_twice(proto)


def assert_same_masks(found, expected):
    assert found.masked().keys() == expected.masked().keys()
    for name, constant in expected.masked().items():
        weight, wanted = found.masked()[name].weight, constant.weight
        assert (weight.shape, weight.dtype) == (wanted.shape, wanted.dtype)
        assert np.array_equal(weight.indices, wanted.indices)
        assert np.array_equal(weight.values, wanted.values)


@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_masks_survive_the_file(masked, tmp_path, storage):
    for name in ("first", "second"):
        masked.save(tmp_path / name, storage=storage)
        assert_same_masks(Model.load(tmp_path / name), masked)
        assert Model.load(tmp_path / name).metadata == {"key": "value"}
        masked = Model.load(tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_masks_survive_a_proto(masked, storage):
    proto = masked.to_proto(storage)
    assert_same_masks(Model.load(proto), masked)
    assert bool(proto.graph.sparse_initializer) == (storage == "sparse")


def test_masks_survive_a_change_of_storage(masked, tmp_path):
    model = masked
    for storage in ("dense", "sparse", "sparse", "dense", "dense"):
        model.save(tmp_path / "m.onnx", storage=storage, force=True)
        model = Model.load(tmp_path / "m.onnx")
    assert_same_masks(model, masked)


def test_masks_as_arrays(masked):
    found = sift_onnx.masks(masked.to_proto())
    assert found.keys() == {"w", "v"}
    for name, mask in found.items():
        assert mask.dtype == bool
        assert np.array_equal(mask, masked.masked()[name].weight.mask())


def test_sparse_file_is_read_by_others_as_the_dense_one(masked, tmp_path):
    dense, sparse = str(tmp_path / "dense.onnx"), str(tmp_path / "sparse.onnx")
    masked.save(dense)
    masked.save(sparse, storage="sparse")
    # Not with full_check: onnx's shape inference does not take sparse initializers for tensors.
    onnx.checker.check_model(sparse)
    assert np.array_equal(outputs(sparse), outputs(dense))
    for name, tensor in gs.import_onnx(onnx.load(sparse)).tensors().items():
        if name in ("w", "v"):
            assert np.array_equal(tensor.values, masked.masked()[name].values)
    assert os.path.getsize(sparse) < os.path.getsize(dense)


def test_sparse_half_precision_file_is_read_by_others(tmp_path):
    model = mask_weights(Model.load(linear({"w": SMALL.astype(np.float16)})))
    model.save(tmp_path / "dense.onnx")
    model.save(tmp_path / "sparse.onnx", storage="sparse")
    onnx.checker.check_model(str(tmp_path / "sparse.onnx"))
    feeds = {"x": random_weight(3, 6, dtype=np.float16)}
    results = [outputs(str(tmp_path / name), feeds) for name in ("dense.onnx", "sparse.onnx")]
    assert np.array_equal(*results)
    values = gs.import_onnx(onnx.load(tmp_path / "sparse.onnx")).tensors()["w"].values
    assert np.array_equal(values, model.masked()["w"].values)
    assert_same_masks(Model.load(tmp_path / "sparse.onnx"), model)


def test_sparse_file_of_an_old_model_is_read_by_others(tmp_path):
    model = mask_weights(Model.load(linear({"w": SMALL, "v": LARGE}, ir_version=3)))
    model.save(tmp_path / "dense.onnx")
    model.save(tmp_path / "sparse.onnx", storage="sparse")
    for name in ("dense.onnx", "sparse.onnx"):
        onnx.checker.check_model(str(tmp_path / name))
    assert onnx.load(tmp_path / "dense.onnx").ir_version == 3
    assert np.array_equal(outputs(str(tmp_path / "sparse.onnx")), outputs(str(tmp_path / "dense.onnx")))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float64"])
def test_masks_of_other_types_survive_dense_storage(dtype, tmp_path):
    import ml_dtypes

    array = random_weight(20, 30).astype(getattr(ml_dtypes, dtype, dtype))
    model = mask_weights(Model.load(linear({"w": array})))
    model.save(tmp_path / "m.onnx")
    assert_same_masks(Model.load(tmp_path / "m.onnx"), model)


def test_sparse_storage_of_a_type_that_readers_do_not_take_is_refused(tmp_path):
    import ml_dtypes

    model = mask_weights(Model.load(linear({"w": SMALL.astype(ml_dtypes.float8_e4m3fn)})))
    with pytest.raises(UnsupportedError, match="`storage='dense'`"):
        model.save(tmp_path / "m.onnx", storage="sparse")
    assert list(tmp_path.iterdir()) == []


def test_unknown_storage_is_refused(masked, tmp_path):
    with pytest.raises(UsageError, match="'csr'"):
        masked.save(tmp_path / "m.onnx", storage="csr")
    assert list(tmp_path.iterdir()) == []


def test_masked_weight_without_active_positions_survives(tmp_path):
    for storage in ("dense", "sparse"):
        model = mask_weights(Model.load(linear({"w": SMALL * 0})), density=0, zeros=0)
        model.save(tmp_path / storage, storage=storage)
        assert sift_onnx.masks(tmp_path / storage)["w"].sum() == 0
        assert outputs(str(tmp_path / storage)).any() == 0


def with_records(model, records):
    proto = model.to_proto() if isinstance(model, Model) else model
    entry = next((e for e in proto.metadata_props if e.key == MASKS_KEY), None)
    entry = proto.metadata_props.add(key=MASKS_KEY) if entry is None else entry
    entry.value = records if isinstance(records, str) else json.dumps(records)
    return proto


@pytest.mark.parametrize(
    "records",
    ["", "{", "[]", '"w"', "null", {"w": 3}, {"w": "u1:!"}, {"w": "u9:"}, {"w": encode_positions([SMALL.size])}],
    ids=str,
)
def test_damaged_masks_are_refused_in_one_line(masked, tmp_path, records):
    onnx.save(with_records(masked, records), tmp_path / "m.onnx")
    with pytest.raises(ModelReadError, match=rf"^{tmp_path / 'm.onnx'}: [^\n]*mask[^\n]*$"):
        Model.load(tmp_path / "m.onnx")


def test_mask_of_another_shape_is_lost_and_said_to_be(masked):
    proto = masked.to_proto()
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(SMALL[:1, :1], "w"))
    with pytest.warns(MaskWarning, match=r"the mask of 'w' is lost: its weight has the shape \[1, 1\] now, not"):
        assert Model.load(proto).masked().keys() == {"v"}


def test_masks_of_dropped_initializers_and_of_small_ones_that_were_renamed_are_lost(masked, tmp_path):
    proto = masked.to_proto()
    proto.graph.initializer[0].name = "renamed"
    proto.graph.node[0].input[1] = "renamed"
    with pytest.warns(MaskWarning, match="the mask of 'w' is lost: its weight is gone"):
        model = Model.load(proto)
    assert model.masked().keys() == {"v"}
    model.save(tmp_path / "m.onnx")
    assert mask_records(onnx_metadata(tmp_path / "m.onnx")[MASKS_KEY]).keys() == {"v"}
    del model.graph.nodes[1:]
    model.graph.outputs = [model.graph.tensors()["h1"]]
    assert MASKS_KEY not in {entry.key for entry in model.to_proto().metadata_props}


def onnx_metadata(path):
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def test_mask_of_an_initializer_that_became_something_else_is_forgotten(masked):
    proto = masked.to_proto()
    text = helper.make_tensor("w", TensorProto.STRING, [1], ["a"])
    proto.graph.initializer[0].CopyFrom(text)
    del proto.graph.node[0].input[:]
    proto.graph.node[0].input.extend(["x", "x"])
    proto.graph.node.append(helper.make_node("Identity", ["w"], ["t"]))
    with pytest.warns(MaskWarning, match="the mask of 'w' is lost"):
        assert Model.load(proto).masked().keys() == {"v"}


def test_weights_that_another_tool_trained_keep_their_active_zeros(masked):
    proto = masked.to_proto()
    weight = masked.masked()["w"].weight
    trained = np.where(weight.mask(), weight.to_dense() * 2, 0).astype(np.float32)
    trained.reshape(-1)[weight.active_zeros()[0]] = 5
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(trained, "w"))
    assert np.array_equal(Model.load(proto).masked()["w"].weight.indices, weight.indices)


@pytest.mark.parametrize("level", ["ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_onnxruntime_s_optimizer_leaves_sensible_masks(masked, tmp_path, level, storage):
    masked.save(tmp_path / "in.onnx", storage=storage)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(tmp_path / "in.onnx"), options, providers=["CPUExecutionProvider"])

    model = Model.load(tmp_path / "optimized.onnx")
    for name, constant in model.masked().items():
        found, before = constant.weight, masked.masked()[name].weight
        assert np.array_equal(found.to_dense(), before.to_dense())
        # It makes sparse initializers anew, of the non-zeros.
        assert np.array_equal(found.mask(), before.mask()) or storage == "sparse"
        assert set(np.flatnonzero(before.to_dense())) <= set(found.indices) <= set(before.indices)
    model.save(tmp_path / "out.onnx")
    assert np.array_equal(outputs(str(tmp_path / "out.onnx")), outputs(str(tmp_path / "in.onnx")))


def test_onnx_ir_leaves_dense_masks_as_they_are(masked):
    through = onnx_ir.from_proto(masked.to_proto())
    assert_same_masks(Model.load(through), masked)


def test_graphsurgeon_leaves_sparse_masks_as_they_are(masked):
    through = gs.export_onnx(gs.import_onnx(masked.to_proto("sparse")))
    assert_same_masks(Model.load(through), masked)


def test_sparse_initializers_in_subgraphs_are_read_and_written(tmp_path):
    proto = branches(random_weight(4, 4), random_weight(4, 4))
    dense = onnx.ModelProto()
    dense.CopyFrom(proto)
    for graph in (proto.graph, proto.graph.node[1].attribute[0].g):
        tensor = graph.initializer.pop()
        values = numpy_helper.to_array(tensor)
        graph.sparse_initializer.append(
            onnx.SparseTensorProto(
                dims=tensor.dims,
                values=helper.make_tensor(tensor.name, TensorProto.FLOAT, [16], values.reshape(-1)),
                indices=helper.make_tensor("", TensorProto.INT64, [16], range(16)),
            )
        )
    model = Model.load(proto)
    model.save(tmp_path / "dense.onnx")
    model.save(tmp_path / "sparse.onnx", storage="sparse")
    feeds = {"x": random_weight(4, 4), "flag": np.array(False)}
    assert np.array_equal(outputs(str(tmp_path / "dense.onnx"), feeds), outputs(dense, feeds))
    assert_same_masks(Model.load(tmp_path / "sparse.onnx"), model)
    found = onnx.load(tmp_path / "sparse.onnx").graph
    for graph in (found, found.node[1].attribute[0].g):
        assert [len(t.indices.int64_data) for t in graph.sparse_initializer] == [16]
    assert sorted(t.name for t in onnx.load(tmp_path / "dense.onnx").graph.initializer) == ["captured", "only-inside"]
