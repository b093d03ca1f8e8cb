"""Reading a graph: what is refused, and copies that can be edited without changing the original."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from builders import branches, linear, model_of, random_weight
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.errors import ModelReadError, UnsupportedError
from sift_onnx.graphs.importing import copy_graph, import_model
from sift_onnx.model import Model

W = random_weight(4, 4)


def snapshot(graph):
    return Model(graph).to_proto()


def test_tensor_that_nothing_makes_is_refused():
    model = linear({"v": W, "w": W})
    del model.graph.node[0]
    with pytest.raises(ModelReadError, match=r"node 'mm1' \(MatMul\) reads 'h1', which nothing makes"):
        import_model(model)


def test_output_that_nothing_makes_is_refused():
    model = linear({"v": W, "w": W})
    del model.graph.node[1]
    with pytest.raises(ModelReadError, match="nothing makes its output 'y'"):
        import_model(model)


def test_tensor_that_a_branch_reads_and_nothing_makes_is_refused():
    model = branches(W, W)
    del model.graph.node[1].attribute[0].g.node[0]
    with pytest.raises(ModelReadError, match=r"then.sum|else.product"):
        import_model(model)


def test_tensor_made_twice_is_refused():
    model = linear({"w": W})
    model.graph.node.append(model.graph.node[0])
    with pytest.raises(ModelReadError, match="two nodes make the tensor 'y'"):
        import_model(model)


def test_initializers_of_one_name_are_refused():
    model = linear({"w": W})
    model.graph.initializer.append(model.graph.initializer[0])
    with pytest.raises(ModelReadError, match="two initializers are named 'w'"):
        import_model(model)


def test_nodes_may_come_in_any_order():
    model = linear({"v": W, "w": W})
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert [node.name for node in import_model(model).nodes] == ["mm1", "mm0"]


def test_string_attribute_that_is_not_text_is_refused_by_name():
    model = linear({"w": W})
    model.graph.node[0].attribute.append(helper.make_attribute("ep_cache_context", b"\xff\xfe"))
    with pytest.raises(UnsupportedError, match=r"'ep_cache_context' of node 'mm0' \(MatMul\)"):
        import_model(model)


def test_attribute_without_a_type_is_refused():
    model = linear({"w": W})
    model.graph.node[0].attribute.add(name="alpha").f = 1
    with pytest.raises(UnsupportedError, match="'alpha' of node 'mm0'"):
        import_model(model)


def test_graphsurgeon_says_nothing_on_stdout(capfd):
    model = linear({"w": W})
    model.graph.node[0].attribute.append(helper.make_attribute("t", helper.make_tensor_type_proto(1, [1])))
    model.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.BFLOAT16, [1]))
    import_model(model)
    assert capfd.readouterr() == ("", "")


def test_captured_constant_is_one_tensor_in_all_levels_of_a_copy():
    copy = copy_graph(import_model(branches(W, W)))
    inside = next(n for n in copy.nodes if n.op == "If").attrs["then_branch"]
    assert inside.tensors()["captured"] is copy.tensors()["captured"]


def test_edit_of_a_captured_constant_reaches_the_file():
    model = Model.load(branches(W, W)).copy()
    model.initializers()["captured"].values = W * 2
    stored = {t.name: numpy_helper.to_array(t) for t in model.to_proto().graph.initializer}
    assert np.array_equal(stored["captured"], W * 2)


def edit_everything(graph):
    for level in [graph, *graph.subgraphs(recursive=True)]:
        level.name = "edited"
        for tensor in list(level.tensors().values()):
            if isinstance(tensor, gs.Constant):
                tensor.values = np.zeros(3, np.float32)
            elif tensor.shape:
                tensor.shape[0] = 77
            tensor.name += ".edited"
        for node in level.nodes:
            node.name += ".edited"
            for value in node.attrs.values():
                if isinstance(value, list):
                    value.append(9)
                if isinstance(value, gs.Constant):
                    value.values = np.ones(9, np.float32)
        level.nodes.pop()


def graph_with_attributes():
    model = branches(W, W)
    value = numpy_helper.from_array(W, "value")
    model.graph.node.insert(0, helper.make_node("Constant", [], ["c"], "constant", value=value))
    model.graph.node.insert(1, helper.make_node("Transpose", ["c"], ["t"], "transpose", perm=[1, 0]))
    return model


def test_edits_of_a_copy_leave_the_original_alone():
    graph = import_model(graph_with_attributes())
    before = snapshot(graph)
    edit_everything(copy_graph(graph))
    assert snapshot(graph) == before


def test_edits_of_the_original_leave_a_copy_alone():
    graph = import_model(graph_with_attributes())
    copy = copy_graph(graph)
    before = snapshot(copy)
    edit_everything(graph)
    assert snapshot(copy) == before


def test_copy_is_the_same_model():
    model = Model.load(graph_with_attributes())
    assert model.copy().copy().to_proto() == model.to_proto()


def test_copy_keeps_types_that_are_no_tensors():
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("SequenceConstruct", ["x"], ["s"]),
        helper.make_node("SequenceLength", ["s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [])],
        value_info=[sequence],
    )
    source = gs.import_onnx(model_of(graph))
    assert list(Model.load(source).to_proto().graph.value_info) == [sequence]


def test_user_s_proto_is_not_touched_by_graphsurgeon_s_exporter():
    source = linear({"w": W})
    before = source.SerializeToString(deterministic=True)
    graph = Model.load(source).copy().graph
    graph.tensors()["w"].name = "renamed"
    graph.nodes[0].domain = "com.example"
    exported = gs.export_onnx(graph)

    assert exported.graph.initializer[0].name == "renamed"
    assert source.SerializeToString(deterministic=True) == before


def test_data_of_a_tensor_that_is_nowhere_is_missed_when_it_is_read():
    skeleton = Model.load(linear({"w": random_weight(200, 200)})).skeleton()
    graph = import_model(skeleton)
    assert list(graph.tensors()["w"].shape) == [200, 200]
    with pytest.raises(ModelReadError, match="initializer 'w': its data is external"):
        graph.tensors()["w"].values  # noqa: B018
    with pytest.raises(ModelReadError, match="initializer 'w': its data is external"):
        Model.load(skeleton)


def test_opsets_of_the_graph_are_not_the_list_of_the_proto():
    source = linear({"w": W})
    graph = import_model(source)
    graph.import_domains.append(helper.make_opsetid("com.example", 3))
    assert len(source.opset_import) == 1
    assert onnx.helper.make_opsetid("com.example", 3) in Model(graph).to_proto().opset_import
