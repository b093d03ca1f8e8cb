import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.backends.base import CompileOptions, get_backend
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.errors import BackendError, ModelReadError, UnsupportedError, UsageError

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)


def perceptron(op="Relu"):
    """y = op(x @ w), x of N x 4."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"], "mm"), helper.make_node(op, ["h"], ["y"], "act")],
        "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compile_model(model, **options):
    return get_backend("onnxruntime").compile(model, CompileOptions(threads=1, **options))


X = np.array([[1, -2, 3, 0.5], [-1, 0, 0, 0]], np.float32)
Y = np.maximum(X @ WEIGHT, 0)


def test_runs_a_model_in_memory():
    outputs = compile_model(perceptron()).run({"x": X})
    assert list(outputs) == ["y"]
    np.testing.assert_allclose(outputs["y"], Y, rtol=1e-6)


@pytest.mark.parametrize("kind", [str, lambda path: path], ids=["str", "Path"])
def test_runs_a_file_whose_weights_lie_beside_it(tmp_path, monkeypatch, kind):
    path = tmp_path / "m.onnx"
    onnx.save(perceptron(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    monkeypatch.chdir(os.sep)
    np.testing.assert_allclose(compile_model(kind(path)).run({"x": X})["y"], Y, rtol=1e-6)


def test_runs_sparse_initializers_as_dense():
    model = perceptron()
    del model.graph.initializer[:]
    flat = WEIGHT.ravel()
    (where,) = np.nonzero(flat)
    values = helper.make_tensor("w", TensorProto.FLOAT, [len(where)], flat[where])
    indices = helper.make_tensor("i", TensorProto.INT64, [len(where)], where)
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, WEIGHT.shape))
    np.testing.assert_allclose(compile_model(model).run({"x": X})["y"], Y, rtol=1e-6)


def test_threads_are_those_asked_for():
    assert compile_model(perceptron()).threads == 1
    assert get_backend("onnxruntime").compile(perceptron()).threads >= 1


@pytest.mark.parametrize(
    ("feeds", "complaint"),
    [
        ({"x": X.astype(np.float64)}, "input 'x' is float64, but the model takes float32"),
        ({"x": X[:, :3]}, "input 'x' has the shape 2,3"),
        ({}, "input 'x' is missing"),
    ],
)
def test_feeds_that_do_not_fit_name_the_input(feeds, complaint):
    with pytest.raises(UsageError, match=complaint):
        compile_model(perceptron()).run(feeds)


def test_failure_while_running_is_one_line(capfd):
    model = perceptron()
    reshape = helper.make_node("Reshape", ["h", "shape"], ["y"], "act")
    model.graph.node[1].CopyFrom(reshape)
    model.graph.input.append(helper.make_tensor_value_info("shape", TensorProto.INT64, [2]))
    with pytest.raises(BackendError, match=r"onnxruntime cannot run the model: .*Reshape") as failure:
        compile_model(model).run({"x": X, "shape": np.array([5, 3])})
    assert "\n" not in str(failure.value)
    assert capfd.readouterr().err == ""


def test_model_that_onnxruntime_refuses_is_one_line(capfd):
    with pytest.raises(BackendError, match=r"cannot load the model: .*NoSuchOp") as failure:
        compile_model(perceptron("NoSuchOp"))
    assert "\n" not in str(failure.value)
    assert failure.value.exit_code == 4
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("content", [None, b"\xff\xff\xff\xff no model"], ids=["missing", "garbage"])
def test_file_that_cannot_be_read(tmp_path, content):
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelReadError, match=r"m\.onnx"):
        compile_model(path)


def test_sequences_are_not_supported():
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    graph = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["x"], ["s"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [sequence],
    )
    with pytest.raises(UnsupportedError, match=r"'s' is seq\(tensor\(float\)\)"):
        compile_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_placements_are_of_the_models_own_nodes():
    placements = compile_model(perceptron()).placements
    if not placements:
        pytest.skip("this version of onnxruntime does not tell")
    assert {(p.name, p.op) for p in placements} == {("mm", "MatMul"), ("act", "Relu")}
    assert {p.placement for p in placements} == {"CPUExecutionProvider"}
    assert all(p.reason for p in placements)


def test_profile_has_every_executed_node_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    profile = compile_model(perceptron("Softmax"), batch=2).profile()
    assert [node.op for node in profile.nodes] == ["MatMul", "Softmax"]
    assert [node.name for node in profile.nodes] == ["mm", "act"]
    assert all(node.ms >= 0 and node.placement == "CPUExecutionProvider" for node in profile.nodes)
    assert profile.runs == 10
    assert list(tmp_path.iterdir()) == []


def test_profile_takes_feeds():
    with pytest.raises(UsageError, match="'x' is float64"):
        compile_model(perceptron()).profile({"x": np.zeros((1, 4))})


def test_profile_without_shapes_names_the_option():
    model = perceptron()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "width"
    with pytest.raises(UsageError, match="`input_shapes=\\{'x': "):
        compile_model(model).profile()
    assert compile_model(model, input_shapes={"x": (3, 4)}).profile().runs == 10


def test_open_axes_that_are_written_as_zeros_are_named_in_the_error():
    model = perceptron()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0
    with pytest.raises(BackendError, match=r"input 'x' is declared as 0,4: give open axes names \(dim_param\)$"):
        compile_model(model).run({"x": X})


def test_a_table_that_is_only_looked_up_in_is_not_copied():
    """An embedding may be a large part of a model."""
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    stored = onnx.TensorProto(name="table", data_type=onnx.TensorProto.FLOAT, dims=table.shape)
    stored.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "elsewhere"), ("offset", "0"), ("length", str(table.nbytes))):
        stored.external_data.add(key=key, value=value)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Gather", ["table", "ids"], ["rows"])],
        "lookup",
        [onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["n"])],
        [onnx.helper.make_tensor_value_info("rows", onnx.TensorProto.FLOAT, ["n", 3])],
        [stored],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    program = OnnxRuntimeProgram(model, CompileOptions(1), {"table": table})
    ids = np.array([3, 1])
    np.testing.assert_array_equal(program.run({"ids": ids})["rows"], table[ids])
    table += 100
    np.testing.assert_array_equal(program.run({"ids": ids})["rows"], table[ids])
