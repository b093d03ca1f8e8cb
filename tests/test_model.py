"""Models in and out: every kind that is accepted comes back as what it was."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir
import pytest
from builders import LARGE, SMALL, branches, convolutions, linear, mask_weights, random_weight, small_and_large
from onnx import helper
from saved_files import masked_twice, outputs

import sift_onnx
from sift_onnx.errors import ModelReadError, OutputError, UsageError
from sift_onnx.graphs.constants import array_of
from sift_onnx.model import Model, as_kind_of


@pytest.fixture
def proto():
    return small_and_large()


@pytest.fixture
def masked(proto):
    return masked_twice(proto)


def test_path_comes_back(proto, tmp_path):
    onnx.save(proto, tmp_path / "in.onnx")
    model = sift_onnx.load(str(tmp_path / "in.onnx"))
    assert model.path == tmp_path / "in.onnx"
    sift_onnx.save(model, tmp_path / "out.onnx")
    assert onnx.load(tmp_path / "out.onnx") == proto
    assert Model.load(tmp_path / "out.onnx").to_proto() == proto
    assert as_kind_of("in.onnx", model) is model


def test_a_model_prints_as_one_line(proto, tmp_path):
    onnx.save(proto, tmp_path / "in.onnx")
    opset, nodes = proto.opset_import[0].version, len(proto.graph.node)
    told = f"opset {opset}, {nodes} nodes, 0 masked weights)"
    assert repr(Model.load(proto)) == f"Model({told}"
    assert repr(Model.load(tmp_path / "in.onnx")) == f"Model({str(tmp_path / 'in.onnx')!r}, {told}"


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
    graph = gs.Graph([gs.Node("MatMul", "mm", inputs=[x, gs.Constant("w", SMALL)], outputs=[y])], [x], [y], opset=15)
    sift_onnx.save(graph, tmp_path / "out.onnx")
    found = onnx.load(tmp_path / "out.onnx")
    assert list(found.opset_import) == [helper.make_opsetid("", 15)]
    assert found.ir_version == 8
    assert np.array_equal(outputs(found), outputs(linear({"w": SMALL})))


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


def test_onnx_ir_model_has_the_large_weights_of_branches():
    proto = branches(random_weight(200, 100), random_weight(200, 100, seed=1))
    model = Model.load(proto).to_onnx_ir()
    assert onnx_ir.to_proto(model) == onnx_ir.to_proto(onnx_ir.from_proto(proto))


def test_onnx_ir_model_with_external_data_is_read(proto, tmp_path):
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    source = onnx_ir.load(tmp_path / "m.onnx")
    assert np.array_equal(array_of(Model.load(source).initializers()["v"]), LARGE)
    assert isinstance(source.graph.initializers["v"].const_value, onnx_ir.ExternalTensor)


def test_model_is_taken_as_it_is(proto):
    model = Model.load(proto)
    assert Model.load(model) is model


@pytest.mark.parametrize("source", [None, 3, bytearray(b"bytes"), ["m.onnx"]])
def test_other_kinds_are_refused(source):
    with pytest.raises(UsageError, match=f"cannot read a model from '{type(source).__name__}'"):
        Model.load(source)


def test_what_a_verb_returns_names_its_model(tmp_path):
    pruned = sift_onnx.prune(convolutions(), 0.5)
    with pytest.raises(UsageError, match="cannot read a model from 'Rewritten'; pass its attribute model"):
        sift_onnx.save(pruned, tmp_path / "pruned.onnx")
    sift_onnx.save(pruned.model, tmp_path / "pruned.onnx")


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
