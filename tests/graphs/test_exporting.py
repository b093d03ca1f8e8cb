"""A model that is loaded and exported is the model that it was, with everything that graphsurgeon does not know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import onnx_graphsurgeon as gs
import onnxruntime
import pytest
from builders import SPARSE_TENSOR, SUBGRAPH, branches, linear, model_of, one_node, random_weight, round_trip, tensors
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.backend.test.case.model import collect_testcases
from onnx.backend.test.loader import load_model_tests

from sift_onnx.files.data_types import bits_of
from sift_onnx.graphs.importing import import_model
from sift_onnx.model import Model

W = random_weight(4, 4)


DATA = Path(onnx.backend.test.__file__).parent / "data"


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("kind", [pytest.param("node", marks=pytest.mark.slow), "model"])
def test_onnx_s_own_test_models_come_back_exactly(kind):
    if kind == "node" and (DATA / "node").is_dir():
        pytest.skip("onnx before 1.23 keeps them in files")
    cases = load_model_tests(kind="node") if kind == "node" else collect_testcases()
    models = {case.name: case.model for case in cases if case.model is not None}
    assert len(models) > (1000 if kind == "node" else 5)
    assert [name for name, model in models.items() if round_trip(model) != model] == []


def test_models_that_come_with_onnx_come_back_exactly():
    paths = sorted(DATA.rglob("*.onnx"))
    assert len(paths) > 50
    assert [str(path) for path in paths if round_trip(onnx.load(path)) != onnx.load(path)] == []


@pytest.mark.parametrize("name", [name for name in TensorProto.DataType.keys() if name != "UNDEFINED"])  # noqa: SIM118
@pytest.mark.parametrize("size", [6, 20_000])
def test_initializer_of_every_data_type_comes_back_from_a_file(name, size, tmp_path):
    number = TensorProto.DataType.Value(name)
    if name == "STRING":
        tensor = helper.make_tensor("t", number, [size], [b"text", b"\xff"] * (size // 2))
    else:
        tensor = tensor_of_bits(number, size)
    model = tensors(tensor)
    onnx.save(model, tmp_path / "in.onnx")
    loaded = Model.load(tmp_path / "in.onnx")
    assert loaded.to_proto() == model
    loaded.save(tmp_path / "out.onnx")
    assert onnx.load(tmp_path / "out.onnx") == model


def tensor_of_bits(number, size):
    nbytes = -(-size * bits_of(number) // 8)
    return TensorProto(name="t", data_type=number, dims=[size], raw_data=np.random.default_rng(0).bytes(nbytes))


def documented(entry, text):
    entry.doc_string = text
    entry.metadata_props.add(key="key", value=text)


def test_descriptions_of_everything_come_back():
    model = branches(W, W)
    model.producer_name, model.producer_version, model.domain, model.model_version = "p", "1", "d", 3
    model.metadata_props.add(key="key", value="of the model")
    model.doc_string = "of the model"
    branch = model.graph.node[1].attribute[0].g
    model.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, ["n", 4]))
    branch.value_info.append(helper.make_tensor_value_info("then.sum", TensorProto.FLOAT, ["n", 4]))
    for graph in (model.graph, branch):
        documented(graph, "of a graph")
        parts = (graph.node, graph.initializer, graph.value_info, graph.input, graph.output)
        for entry in (entry for part in parts for entry in part):
            documented(entry, f"of {entry.name}")
    model.graph.input[0].type.denotation = "IMAGE"
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    annotation = model.graph.quantization_annotation.add(tensor_name="x")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="captured")
    assert round_trip(model) == model


def test_new_values_of_an_initializer_keep_its_description():
    source = linear({"w": W})
    documented(source.graph.initializer[0], "of w")
    model = Model.load(source)
    model.initializers()["w"].values = W * 2
    documented(expected := numpy_helper.from_array(W * 2, "w"), "of w")
    assert list(model.to_proto().graph.initializer) == [expected]


def test_device_configurations_come_back():
    if not hasattr(onnx.NodeProto(), "device_configurations"):
        pytest.skip("IR version 11")
    model = one_node()
    model.graph.node[0].device_configurations.add(configuration_id="c", pipeline_stage=2)
    model.configuration.add(name="c", num_devices=4)
    assert round_trip(model) == model


def test_training_info_comes_back():
    model = linear({"w": W})
    info = model.training_info.add()
    info.algorithm.CopyFrom(SUBGRAPH)
    info.update_binding.add(key="w", value="new")
    assert round_trip(model) == model


def with_function(overload="", factor=2.0):
    function = helper.make_function(
        "com.example",
        "Scale",
        ["a"],
        ["b"],
        [
            helper.make_node("Constant", [], ["f"], value=helper.make_tensor("f", TensorProto.FLOAT, [], [factor])),
            helper.make_node("Mul", ["a", "f"], ["b"], "mul", doc_string="of the node"),
            helper.make_node("LeakyRelu", ["b"], ["unused"]),
        ],
        [helper.make_opsetid("", 21)],
        ["required"],
        [helper.make_attribute("slope", 0.5)],
        doc_string="of the function",
    )
    reference = AttributeProto(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="slope")
    function.node[2].attribute.append(reference)
    function.value_info.append(helper.make_tensor_value_info("f", TensorProto.FLOAT, []))
    function.metadata_props.add(key="key", value="of the function")
    if overload:
        function.overload = overload
    return function


def test_functions_come_back():
    model = one_node("Scale")
    model.functions.append(with_function())
    assert round_trip(model) == model


def test_overloads_of_a_function_are_kept_apart():
    model = one_node("Scale")
    model.functions.extend([with_function("first", 2.0), with_function("second", 3.0)])
    model.graph.node[0].overload = "second"
    assert round_trip(model) == model


def test_edit_of_a_function_is_written():
    model = one_node("Scale")
    model.functions.append(with_function())
    loaded = Model.load(model)
    node = next(node for node in loaded.graph.functions[0].nodes if node.op == "Mul")
    node.op = "Div"
    assert [n.op_type for n in loaded.to_proto().functions[0].node] == ["Constant", "Div", "LeakyRelu"]
    assert loaded.to_proto().functions[0].metadata_props == model.functions[0].metadata_props


def test_branches_with_captured_and_own_initializers_come_back_and_run():
    model = branches(W, W * 2)
    exported = round_trip(model)
    assert exported == model
    for flag in (True, False):
        feeds = {"x": random_weight(4, 4), "flag": np.array(flag)}
        assert np.array_equal(outputs(exported, feeds), outputs(model, feeds))


def outputs(model, feeds):
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[
        0
    ]


def test_loop_comes_back():
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["continue.in"], ["continue"]),
            helper.make_node("MatMul", ["state.in", "w"], ["product"]),
            helper.make_node("Add", ["product", "own"], ["state"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("continue.in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state.in", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("continue", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(W[0], "own")],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], "loop", body=body)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", 4])],
        [numpy_helper.from_array(W, "w"), numpy_helper.from_array(np.array(3), "n")],
    )
    model = model_of(graph)
    assert round_trip(model) == model
    x = random_weight(2, 4)
    assert np.array_equal(outputs(round_trip(model), {"x": x}), outputs(model, {"x": x}))


def test_values_of_every_kind_of_type_come_back():
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    kinds = {
        "sequence": helper.make_sequence_type_proto(optional),
        "optional": optional,
        "map": helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, [1])),
        "sparse": helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [1, "n"]),
        "bf16": helper.make_tensor_type_proto(TensorProto.BFLOAT16, ["a", None, 3]),
        "fp8": helper.make_tensor_type_proto(TensorProto.FLOAT8E4M3FNUZ, []),
        "unknown rank": helper.make_tensor_type_proto(TensorProto.FLOAT, None),
        "no type": onnx.TypeProto(),
    }
    infos = {name: helper.make_value_info(name, kind) for name, kind in kinds.items()}
    inner = {name: helper.make_value_info(f"{name}.mid", kind) for name, kind in kinds.items()}
    nodes = [helper.make_node("Identity", [name], [f"{name}.mid"]) for name in kinds]
    nodes += [helper.make_node("Identity", [f"{name}.mid"], [f"{name}.out"]) for name in kinds]
    ends = [helper.make_value_info(f"{name}.out", kind) for name, kind in kinds.items()]
    model = model_of(helper.make_graph(nodes, "g", list(infos.values()), ends, value_info=list(inner.values())))
    assert round_trip(model) == model


def test_initializers_that_are_inputs_stay_inputs():
    model = linear({"v": W, "w": W.T}, ir_version=3)
    model.graph.input.reverse()
    assert round_trip(model) == model
    onnx.checker.check_model(round_trip(model))


def test_new_initializer_of_an_old_model_becomes_an_input_too():
    model = Model.load(linear({"w": W}, ir_version=3))
    model.graph.nodes[0].inputs[1] = gs.Constant("new", W)
    exported = model.to_proto()
    onnx.checker.check_model(exported)
    assert [i.name for i in exported.graph.input] == ["x", "new"]


def test_removed_initializer_of_an_old_model_is_no_input_any_more():
    model = Model.load(linear({"v": W, "w": W}, ir_version=3))
    model.graph.nodes[1].inputs[1] = model.graph.nodes[0].inputs[1]
    exported = model.to_proto()
    assert [t.name for t in exported.graph.initializer] == ["v"]
    assert [i.name for i in exported.graph.input] == ["x", "v"]


def test_initializers_and_value_infos_that_nothing_reads_come_back():
    model = linear({"w": W})
    model.graph.initializer.insert(0, numpy_helper.from_array(W, "unread"))
    model.graph.sparse_initializer.append(SPARSE_TENSOR)
    model.graph.value_info.append(helper.make_tensor_value_info("nobody", TensorProto.FLOAT, [3]))
    model.graph.input.append(helper.make_tensor_value_info("unread", TensorProto.FLOAT, [4, 4]))
    assert round_trip(model) == model


def test_unread_initializer_of_a_rewritten_skeleton_is_left_out():
    model = linear({"w": W})
    model.graph.initializer.append(numpy_helper.from_array(random_weight(200, 100), "unread"))
    skeleton = Model.load(model).skeleton()
    rewritten = Model(import_model(skeleton), origin=skeleton)
    assert [t.name for t in rewritten.to_proto().graph.initializer] == ["w"]


def test_value_info_of_a_captured_tensor_is_not_repeated_inside():
    model = branches(W, W)
    model.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, ["n", 4]))
    branch = round_trip(model).graph.node[1].attribute[0].g
    assert list(branch.value_info) == []


def test_shape_that_is_edited_keeps_what_is_not():
    source = linear({"v": W, "w": W})
    source.graph.value_info.append(helper.make_tensor_value_info("h1", TensorProto.FLOAT, ["batch", 4]))
    source.graph.value_info[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    model = Model.load(source)
    model.graph.tensors()["h1"].shape[1] = 7
    shape = model.to_proto().graph.value_info[0].type.tensor_type.shape
    assert (shape.dim[0].dim_param, shape.dim[0].denotation, shape.dim[1].dim_value) == ("batch", "DATA_BATCH", 7)


@pytest.mark.parametrize("shape", [None, [], [1, 2, 3], ["n", None]])
def test_shape_of_another_rank_is_written(shape):
    source = linear({"v": W, "w": W})
    source.graph.value_info.append(helper.make_tensor_value_info("h1", TensorProto.FLOAT, ["batch", 4]))
    model = Model.load(source)
    model.graph.tensors()["h1"].shape = shape
    expected = helper.make_tensor_value_info("h1", TensorProto.FLOAT, shape)
    assert list(model.to_proto().graph.value_info) == [expected]


def test_new_tensors_are_described():
    model = Model.load(linear({"v": W, "w": W}))
    tensor = model.graph.tensors()["h1"]
    tensor.shape, tensor.dtype = ["batch", 4], np.dtype(np.float32)
    expected = helper.make_tensor_value_info("h1", TensorProto.FLOAT, ["batch", 4])
    assert list(model.to_proto().graph.value_info) == [expected]


def test_replaced_node_gets_nothing_of_the_old_one():
    model = one_node("Relu", "", doc_string="of the old one")
    loaded = Model.load(model)
    loaded.graph.nodes[0].op = "Abs"
    assert loaded.to_proto().graph.node[0].doc_string == ""


def test_domain_of_a_new_node_is_imported():
    model = Model.load(linear({"w": W}))
    model.graph.nodes[0].domain = "com.example"
    assert helper.make_opsetid("com.example", 1) in model.to_proto().opset_import


def test_opset_imports_come_back_in_order():
    model = linear({"w": W})
    del model.opset_import[:]
    for domain, version in [("ai.onnx.ml", 3), ("", 17), ("com.microsoft", 1)]:
        model.opset_import.add(domain=domain, version=version)
    assert round_trip(model) == model
