"""Models in and out: every kind that is accepted, masks in both storages, and what other tools do in between."""

from __future__ import annotations

import contextlib
import json
import os
import tracemalloc

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir
import onnxruntime
import pytest
from builders import branches, convolutions, linear, mask_weights, random_weight
from onnx import TensorProto, helper, numpy_helper

import sift_onnx
from sift_onnx.errors import MaskWarning, ModelReadError, OutputError, UnsupportedError, UsageError
from sift_onnx.graphs.constants import array_of
from sift_onnx.model import Model, as_kind_of
from sift_onnx.weights.mask_storage import MASKS_KEY, mask_records
from sift_onnx.weights.sparse import encode_positions

# The first is small, the second is cut out of the file and streamed.
W, V = random_weight(6, 8), random_weight(8, 3000, seed=1)


@pytest.fixture
def proto():
    model = linear({"w": W, "v": V})
    model.metadata_props.add(key="key", value="value")
    model.producer_name, model.producer_version = "someone", "1.2"
    return model


@pytest.fixture
def masked(proto):
    """Masks over both weights, with active zeros, one of them negative."""
    model = mask_weights(Model.load(proto))
    model.masked()["w"].weight.values[1] = -0.0
    return model


def outputs(model, feeds=None):
    content = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()} & {"x"}
    return session.run(None, feeds or {name: random_weight(3, 6) for name in names})[0]


def assert_same_masks(found, expected):
    assert found.masked().keys() == expected.masked().keys()
    for name, constant in expected.masked().items():
        weight, wanted = found.masked()[name].weight, constant.weight
        assert (weight.shape, weight.dtype) == (wanted.shape, wanted.dtype)
        assert np.array_equal(weight.indices, wanted.indices)
        assert np.array_equal(weight.values, wanted.values)


def test_path_comes_back(proto, tmp_path):
    onnx.save(proto, tmp_path / "in.onnx")
    model = sift_onnx.load(str(tmp_path / "in.onnx"))
    assert model.path == tmp_path / "in.onnx"
    sift_onnx.save(model, tmp_path / "out.onnx")
    assert onnx.load(tmp_path / "out.onnx") == proto
    assert Model.load(tmp_path / "out.onnx").to_proto() == proto
    assert as_kind_of("in.onnx", model) is model


def test_proto_comes_back(proto, tmp_path):
    sift_onnx.save(proto, tmp_path / "out.onnx")
    assert onnx.load(tmp_path / "out.onnx") == proto
    assert as_kind_of(proto, Model.load(proto)) == proto


def test_bytes_come_back(proto):
    content = proto.SerializeToString()
    back = as_kind_of(content, Model.load(content))
    assert isinstance(back, bytes)
    assert onnx.ModelProto.FromString(back) == proto


@pytest.mark.parametrize("content", [b"", b"m.onnx", b"\x08\x0a"])
def test_bytes_that_are_no_model_are_refused(content):
    with pytest.raises(ModelReadError, match=rf"what was passed \({len(content)} bytes\) is not an ONNX model"):
        Model.load(content)


def test_graphsurgeon_graph_comes_back(proto, tmp_path):
    graph = gs.import_onnx(proto)
    before = gs.export_onnx(graph).SerializeToString()
    sift_onnx.save(graph, tmp_path / "out.onnx")
    found = onnx.load(tmp_path / "out.onnx")

    assert found.graph == proto.graph
    for field in ("opset_import", "ir_version", "producer_name", "producer_version"):
        assert getattr(found, field) == getattr(proto, field)
    onnx.checker.check_model(found, full_check=True)
    assert gs.export_onnx(graph).SerializeToString() == before


def test_new_graphsurgeon_graph_gets_its_opset_and_the_oldest_ir_version_that_has_it(tmp_path):
    x, y = gs.Variable("x", np.float32, ["n", 6]), gs.Variable("y", np.float32, ["n", 8])
    graph = gs.Graph([gs.Node("MatMul", "mm", inputs=[x, gs.Constant("w", W)], outputs=[y])], [x], [y], opset=15)
    sift_onnx.save(graph, tmp_path / "out.onnx")
    found = onnx.load(tmp_path / "out.onnx")
    assert list(found.opset_import) == [helper.make_opsetid("", 15)]
    assert found.ir_version == 8
    assert np.array_equal(outputs(found), outputs(linear({"w": W})))


def test_graphsurgeon_graph_keeps_its_metadata_and_masks_on_the_way(proto, masked):
    graph = gs.import_onnx(proto)
    model = Model.load(graph)
    model.metadata["key"] = "value"
    back = as_kind_of(graph, mask_weights(model))
    assert isinstance(back, gs.Graph)
    assert back.metadata_props == {"key": "value"}
    assert Model.load(back).metadata == {"key": "value"}
    assert Model.load(back).masked().keys() == {"w", "v"}


@pytest.mark.parametrize(
    "kind", [lambda proto: proto, onnx.ModelProto.SerializeToString, gs.import_onnx, onnx_ir.from_proto, Model.load]
)
def test_transform_of_its_own_output_changes_nothing(kind):
    once = sift_onnx.transform(kind(convolutions()), wide=0.75, budget="layer")
    twice = sift_onnx.transform(once, wide=0.75, budget="layer")
    assert type(once) is type(twice) is type(kind(convolutions()))
    assert Model.load(twice).to_proto() == Model.load(once).to_proto()
    assert sift_onnx.masks(twice).keys() == {"conv1.weight", "conv2.weight"}


def test_graphsurgeon_graph_with_external_data_is_refused_when_it_is_read(proto, tmp_path):
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    graph = gs.import_onnx(onnx.load(tmp_path / "m.onnx", load_external_data=False))
    with pytest.raises(ModelReadError, match="initializer 'w'"):
        Model.load(graph).save(tmp_path / "out.onnx")


def test_onnx_ir_model_comes_back(proto, tmp_path):
    source = onnx_ir.from_proto(proto)
    expected = onnx_ir.to_proto(source)
    assert Model.load(source).to_proto() == expected
    back = as_kind_of(source, Model.load(source))
    assert isinstance(back, onnx_ir.Model)
    assert onnx_ir.to_proto(back) == expected


def test_onnx_ir_model_with_external_data_is_read(proto, tmp_path):
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    source = onnx_ir.load(tmp_path / "m.onnx")
    assert np.array_equal(array_of(Model.load(source).initializers()["v"]), V)
    assert isinstance(source.graph.initializers["v"].const_value, onnx_ir.ExternalTensor)


def test_model_is_taken_as_it_is(proto):
    model = Model.load(proto)
    assert Model.load(model) is model


@pytest.mark.parametrize("source", [None, 3, bytearray(b"bytes"), ["m.onnx"]])
def test_other_kinds_are_refused(source):
    with pytest.raises(UsageError, match=f"cannot read a model from '{type(source).__name__}'"):
        Model.load(source)


def test_model_cannot_be_saved_to_something_else(proto):
    with pytest.raises(OutputError, match="name a file"):
        sift_onnx.save(proto, proto)


def test_proto_is_not_changed_by_edits_of_its_model(proto, tmp_path):
    before = proto.SerializeToString(deterministic=True)
    model = Model.load(proto)
    for edited in (model.copy(), model):
        edited.graph.name, edited.graph.doc_string = "new", "new"
        edited.metadata["new"] = "new"
        edited.graph.inputs[0].shape[0] = 9
        edited.initializers()["w"].values[0] = 0
        edited.initializers()["v"].name = "renamed"
        edited.graph.nodes[0].attrs["new"] = [1]
        edited.graph.opset = 3
        edited.to_proto()
        edited.save(tmp_path / "m.onnx", force=True)
        edited.skeleton()
    assert proto.SerializeToString(deterministic=True) == before


def test_skeleton_has_every_shape_and_no_large_data(proto):
    skeleton = Model.load(proto).skeleton()
    assert skeleton.ByteSize() < 2000
    inferred = onnx.shape_inference.infer_shapes(skeleton, strict_mode=True, data_prop=True)
    assert [info.name for info in inferred.graph.value_info] == ["h1"]
    assert skeleton.graph.initializer[0] == proto.graph.initializer[0]


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
    model = mask_weights(Model.load(linear({"w": W.astype(np.float16)})))
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
    model = mask_weights(Model.load(linear({"w": W, "v": V}, ir_version=3)))
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

    model = mask_weights(Model.load(linear({"w": W.astype(ml_dtypes.float8_e4m3fn)})))
    with pytest.raises(UnsupportedError, match="--storage dense"):
        model.save(tmp_path / "m.onnx", storage="sparse")
    assert list(tmp_path.iterdir()) == []


def test_unknown_storage_is_refused(masked, tmp_path):
    with pytest.raises(UsageError, match="'csr'"):
        masked.save(tmp_path / "m.onnx", storage="csr")
    assert list(tmp_path.iterdir()) == []


def test_masked_weight_without_active_positions_survives(tmp_path):
    for storage in ("dense", "sparse"):
        model = mask_weights(Model.load(linear({"w": W * 0})), density=0, zeros=0)
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
    ["", "{", "[]", '"w"', "null", {"w": 3}, {"w": "u1:!"}, {"w": "u9:"}, {"w": encode_positions([W.size])}],
    ids=str,
)
def test_damaged_masks_are_refused_in_one_line(masked, tmp_path, records):
    onnx.save(with_records(masked, records), tmp_path / "m.onnx")
    with pytest.raises(ModelReadError, match=rf"^{tmp_path / 'm.onnx'}: [^\n]*mask[^\n]*$"):
        Model.load(tmp_path / "m.onnx")


def test_mask_of_another_shape_is_lost_and_said_to_be(masked):
    proto = masked.to_proto()
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(W[:1, :1], "w"))
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


def refused(path):
    with pytest.raises(ModelReadError) as caught:
        Model.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0", b"\x08\x08", b"<!DOCTYPE html>", b"version https://git-lfs.github.com/spec/v1\n", bytes(range(256))],
    ids=["empty", "zero", "version alone", "page", "pointer", "bytes"],
)
def test_file_that_is_no_model_is_refused(tmp_path, content):
    (tmp_path / "m.onnx").write_bytes(content)
    refused(tmp_path / "m.onnx")


def test_path_that_cannot_be_read_is_refused(tmp_path):
    assert "no such file" in refused(tmp_path / "m.onnx")
    assert "is a folder" in refused(tmp_path)
    assert "too long" in refused(tmp_path / ("x" * 300))
    (tmp_path / "file").write_bytes(b"")
    assert "cannot read" in refused(tmp_path / "file" / "m.onnx")
    (tmp_path / "loop").symlink_to("loop")
    refused(tmp_path / "loop")


def test_file_that_is_cut_off_anywhere_is_refused(masked, tmp_path):
    masked.save(tmp_path / "m.onnx")
    whole = (tmp_path / "m.onnx").read_bytes()
    cuts = {*range(0, 1500, 5), *range(1500, len(whole), 1999), *range(len(whole) - 60, len(whole))}
    for length in cuts:
        (tmp_path / "cut.onnx").write_bytes(whole[:length])
        refused(tmp_path / "cut.onnx")


def test_file_of_another_tool_that_is_cut_off_is_refused_or_lacks_what_stood_last(masked, tmp_path):
    whole = masked.to_proto().SerializeToString()
    for length in {*range(0, 600, 3), *range(len(whole) - 700, len(whole), 2)}:
        (tmp_path / "cut.onnx").write_bytes(whole[:length])
        with contextlib.suppress(ModelReadError):
            assert Model.load(tmp_path / "cut.onnx").to_proto().graph == masked.to_proto().graph


def test_damaged_bytes_are_refused_or_harmless(masked, tmp_path):
    whole = bytearray(masked.to_proto().SerializeToString())
    rng = np.random.default_rng(0)
    for _ in range(600):
        damaged = bytearray(whole)
        # Most of the file is data, which may be anything.
        at = int(rng.integers(200)) if rng.random() < 0.9 else int(rng.integers(len(whole)))
        damaged[at] = int(rng.integers(256))
        (tmp_path / "m.onnx").write_bytes(bytes(damaged))
        with contextlib.suppress(ModelReadError, UnsupportedError):
            Model.load(tmp_path / "m.onnx").to_proto()


@pytest.mark.parametrize("text", [b"someone", b"batch", b"linear", b"mm0", b"MatMul", b"h1", b"value"])
def test_text_that_is_not_utf_8_is_refused_or_dropped(proto, tmp_path, text):
    data = proto.SerializeToString()
    assert text in data
    (tmp_path / "m.onnx").write_bytes(data.replace(text, b"\xff" * len(text)))
    with contextlib.suppress(ModelReadError):
        Model.load(tmp_path / "m.onnx").save(tmp_path / "out.onnx")


def test_opset_is_required(proto, tmp_path):
    del proto.opset_import[:]
    onnx.save(proto, tmp_path / "m.onnx")
    assert "no opset" in refused(tmp_path / "m.onnx")


def test_large_data_is_read_and_written_without_a_copy(tmp_path):
    size = 8_000_000
    onnx.save(linear({"w": np.ones((1000, size // 4000), np.float32)}), tmp_path / "in.onnx")
    tracemalloc.start()
    try:
        model = Model.load(tmp_path / "in.onnx")
        assert tracemalloc.get_traced_memory()[1] < 1e6
        tracemalloc.reset_peak()
        loaded = tracemalloc.get_traced_memory()[0]
        model.save(tmp_path / "out.onnx")
        assert tracemalloc.get_traced_memory()[1] - loaded < 1.5e6
        tracemalloc.reset_peak()
        model.save(tmp_path / "out.onnx", force=True)
        assert tracemalloc.get_traced_memory()[1] - loaded < 1.5e6
        masked = mask_weights(model, density=0.01)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        masked.save(tmp_path / "masked.onnx")
        assert tracemalloc.get_traced_memory()[1] - before < 6e6, "one piece of 4 MiB, not the dense tensor"
    finally:
        tracemalloc.stop()
    assert onnx.load(tmp_path / "out.onnx") == onnx.load(tmp_path / "in.onnx")
