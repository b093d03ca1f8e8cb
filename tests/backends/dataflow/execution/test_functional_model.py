"""Outputs: equal to onnxruntime's, and in fp16 to a loop that adds up one non-zero after the other."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from builders import branches, random_weight
from dataflow_cases import convolution, grid, linear, sparse_integers
from function_nets import layers_in_functions
from hypothesis import given
from hypothesis import strategies as st
from nets import Net
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.backends import dataflow
from sift_onnx.backends.base import CompileOptions, get_backend
from sift_onnx.backends.dataflow.execution.csr_kernels import CsrMatrix, multiply, multiply_in_arrival_order
from sift_onnx.backends.dataflow.machines.preset_files import load_machine
from sift_onnx.backends.dataflow.program import DataflowProgram
from sift_onnx.backends.dataflow.simulation.model_simulation import simulate
from sift_onnx.errors import UnsupportedError, UsageError


def reference(model, feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def integers(*shape, seed=1):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def run(model, feeds, **options):
    return DataflowProgram(model, grid(4, 4), CompileOptions(threads=1), **options).run(feeds)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 0, 2, 1]},
        {"strides": [2, 3], "pads": [1] * 4},
        {"dilations": [2, 1]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER"},
        {"auto_pad": "VALID"},
    ],
)
def test_a_convolution_of_integers_is_exact(attributes):
    model = convolution(sparse_integers(6, 4, 3, 2), **attributes)
    feeds = {"x": integers(2, 3, 9, 9)}
    np.testing.assert_array_equal(run(model, feeds)["y"], reference(model, feeds)["y"])


def test_layers_in_local_functions_are_multiplied_by_the_machine():
    net = layers_in_functions(Net())
    program = DataflowProgram(net.model(), grid(4, 4), CompileOptions(threads=1))
    assert [p.op for p in program.placements if p.placement == "csr"] == ["MatMul"] * 3
    np.testing.assert_allclose(*(r["head"] for r in (program.run(net.feeds), reference(net.model(), net.feeds))), 1e-5)


@pytest.mark.parametrize("rows", [1, 200])  # of small weights, and of large ones
@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("flag", [False, True])
def test_weights_that_only_branches_read_are_known(rows, in_function, flag):
    model = branches(random_weight(rows, 100), random_weight(rows, 100, seed=1))
    if in_function:
        opsets = [helper.make_opsetid("", 17)]
        body = [helper.make_node("Relu", ["a"], ["b"])]
        model.functions.append(helper.make_function("local", "Act", ["a"], ["b"], body, opsets))
        model.opset_import.append(helper.make_opsetid("local", 1))
        model.graph.node.append(helper.make_node("Act", ["y"], ["z"], domain="local"))
        model.graph.output[0].name = "z"
    feeds = {"x": integers(rows, 100), "flag": np.array(flag)}
    np.testing.assert_equal(run(model, feeds), reference(model, feeds))


def test_an_output_may_be_a_stored_weight():
    model = linear(sparse_integers(4, 6))
    weight = model.graph.initializer[0]
    model.graph.output.append(helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    feeds = {"x": integers(3, 6)}
    np.testing.assert_equal(run(model, feeds), reference(model, feeds))


@pytest.mark.parametrize("group", [2, 4])
def test_a_grouped_convolution_of_integers_is_exact(group):
    model = convolution(sparse_integers(8, 4 // group, 3, 3, density=0.5), group=group)
    feeds = {"x": integers(2, 3, 9, 9)}
    np.testing.assert_array_equal(run(model, feeds)["y"], reference(model, feeds)["y"])


@pytest.mark.parametrize("transpose", [0, 1])
def test_a_gemm_is_exact(transpose):
    weight = sparse_integers(5, 7)
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["r"], "relu"),
            helper.make_node("Gemm", ["r", "w", "b"], ["y"], "gemm", transB=transpose, alpha=2.0, beta=3.0),
        ],
        "gemm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5])],
        [
            numpy_helper.from_array(weight if transpose else np.ascontiguousarray(weight.T), "w"),
            numpy_helper.from_array(integers(5), "b"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"x": integers(3, 7)}
    np.testing.assert_array_equal(run(model, feeds)["y"], reference(model, feeds)["y"])


def test_floats_are_equal_to_rounding():
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((40, 60)) * (rng.random((40, 60)) < 0.3)).astype(np.float32)
    model, feeds = linear(weight), {"x": rng.standard_normal((5, 60)).astype(np.float32)}
    np.testing.assert_allclose(run(model, feeds)["y"], reference(model, feeds)["y"], rtol=1e-5, atol=1e-5)


def test_pieces_without_weights_run_between_weighted_nodes():
    program = DataflowProgram(convolution(sparse_integers(6, 4, 3, 3)), grid(4, 4))
    assert [(p.name, p.placement) for p in program.placements] == [
        ("stem_node", "csr"),
        ("conv", "csr"),
        ("relu", "onnxruntime"),
    ]


def test_rows_without_non_zeros_give_zeros():
    matrix = CsrMatrix.of(np.array([2]), np.array([1]), np.array([3.0], np.float32), 4, 3)
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(multiply(matrix, x), [[0, 0], [0, 0], [6, 9], [0, 0]])
    shard, owner = np.zeros(3, np.int64), np.zeros(4, np.int64)
    np.testing.assert_array_equal(multiply_in_arrival_order(matrix, x, shard, owner), multiply(matrix, x))


@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_fp16_rounds_after_each_step_in_the_order_of_arrival(rows, width, tokens, columns, seed):
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((rows, width)) * (rng.random((rows, width)) < 0.6)
    r, c = np.nonzero(dense)
    matrix = CsrMatrix.of(r, c, dense[r, c].astype(np.float32), rows, width)
    x = rng.standard_normal((width, tokens)).astype(np.float32)
    used = min(columns, width)
    shard, owner = np.arange(width) * used // width, np.arange(rows) * used // rows
    expected = np.zeros((rows, tokens), np.float16)
    for row in range(rows):
        for step in range(used):
            column = (owner[row] + 1 + step) % used
            mine = [k for k in range(width) if shard[k] == column and dense[row, k]]
            if not mine:
                continue
            partial = np.zeros(tokens, np.float16)
            for k in mine:
                weight = np.float32(np.float16(dense[row, k]))
                partial = (partial.astype(np.float32) + weight * x[k].astype(np.float16)).astype(np.float16)
            expected[row] = expected[row] + partial
    np.testing.assert_array_equal(multiply_in_arrival_order(matrix, x, shard, owner), expected)


def test_fp16_is_near_the_exact_output():
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((20, 64)) * (rng.random((20, 64)) < 0.4)).astype(np.float32)
    model, feeds = linear(weight), {"x": rng.standard_normal((3, 64)).astype(np.float32)}
    exact, rounded = run(model, feeds)["y"], run(model, feeds, arithmetic="float16")["y"]
    assert 0 < np.abs(exact - rounded).max() < 0.05


def test_fp16_needs_a_grid():
    with pytest.raises(UnsupportedError, match="no order in which partial sums arrive"):
        DataflowProgram(linear(sparse_integers(4, 4)), load_machine("ideal"), arithmetic="float16")


def test_the_back_end_simulates_time_and_names_what_binds():
    program = get_backend("dataflow:wse3").compile(linear(sparse_integers(8, 16)), CompileOptions(threads=1, batch=4))
    assert program.machine.name == "wse3"
    assert program.simulated_ms == pytest.approx(1e3 * program.simulation.seconds)
    profile = program.profile()
    assert profile.total_ms == pytest.approx(program.simulated_ms)
    assert all("bound by" in node.reason for node in profile.nodes)
    assert program.simulation.batch == 4


def test_a_preset_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="no preset 'wse9'"):
        get_backend("dataflow:wse9")


def test_a_preset_of_one_s_own_is_named_by_its_file(tmp_path):
    text = (Path(dataflow.__file__).parent / "presets" / "ideal.toml").read_text()
    (tmp_path / "ours.toml").write_text(text.replace("value = 1.1e9", "value = 1.0e6"))

    assert get_backend(f"dataflow:{tmp_path / 'ours.toml'}").preset == str(tmp_path / "ours.toml")
    with pytest.raises(UsageError, match=r"none\.toml"):
        get_backend("dataflow:none.toml").compile(linear(sparse_integers(4, 4)))


@pytest.mark.parametrize(("op", "inputs"), [("Dropout", ["x", "ratio", "yes"]), ("RandomUniformLike", ["x"])])
def test_a_model_whose_outputs_are_by_chance_is_compared_with_nothing(op, inputs):
    model = linear(sparse_integers(4, 4))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "ratio"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    inputs = [model.graph.node[0].input[0] if name == "x" else name for name in inputs]
    model.graph.node.insert(0, helper.make_node(op, inputs, ["noise"], "noise"))
    model.graph.node[1].input[0] = "noise"
    with pytest.raises(UnsupportedError, match=f"outputs cannot be compared: .*'noise' .{op}."):
        simulate(model, "wse2", fidelity="functional")
    assert simulate(model, "wse2").layers


def test_a_weight_of_nothing_but_zeros_multiplies_what_it_meets():
    model = linear(np.zeros((5, 6), np.float32))
    x = integers(3, 6)
    x[1, 2] = np.inf
    with np.errstate(invalid="ignore"):
        y = run(model, {"x": x})["y"]
    np.testing.assert_array_equal(np.isnan(y), np.isnan(reference(model, {"x": x})["y"]))
    assert np.isnan(y[1]).all()


def test_a_product_of_two_stored_matrices_is_computed():
    a, b = integers(3, 5), sparse_integers(5, 7)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["ab"], "mm"), helper.make_node("Add", ["ab", "x"], ["y"], "add")],
        "stored",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 7])],
        [numpy_helper.from_array(a, "a"), numpy_helper.from_array(b, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"x": integers(7)}
    np.testing.assert_array_equal(run(model, feeds)["y"], reference(model, feeds)["y"])
