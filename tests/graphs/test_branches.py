"""Graphs with one branch in the place of an ``If``, against the reference evaluator on the graph that chooses."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from sift_onnx.graphs.branches import choosing_inputs, take_branch
from sift_onnx.model import Model

FLOATS = np.array([-1.0, 2.0, 3.0], np.float32)


def node(op: str, inputs: list[str], output: str, **attributes) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], f"{output}.node", **attributes)


def body(nodes: list[onnx.NodeProto], outputs: list[str], constants: dict[str, float] | None = None) -> onnx.GraphProto:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in outputs]
    stored = [
        onnx.numpy_helper.from_array(np.full(3, value, np.float32), name) for name, value in (constants or {}).items()
    ]
    return helper.make_graph(nodes, "body", [], infos, stored)


def choice(condition: str, then: onnx.GraphProto, other: onnx.GraphProto, outputs: list[str]) -> onnx.NodeProto:
    return helper.make_node("If", [condition], outputs, f"{outputs[0]}.if", then_branch=then, else_branch=other)


def model_of(nodes: list[onnx.NodeProto], outputs: list[str], dims: list[int] | None = None) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [3]),
        helper.make_tensor_value_info("chosen", TensorProto.BOOL, dims if dims is not None else [1]),
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in outputs]
    stored = [onnx.numpy_helper.from_array(np.array([1, 10, 100], np.float32), "weight")]
    graph = helper.make_graph(nodes, "choosing", inputs, infos, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def outputs_of(model: onnx.ModelProto, value: bool) -> list[np.ndarray]:
    chosen = np.array([value] if model.graph.input[1].type.tensor_type.shape.dim else value)
    return ReferenceEvaluator(model).run(None, {"x": FLOATS, "chosen": chosen})


def assert_same_with_a_branch(model: onnx.ModelProto) -> None:
    for value in (True, False):
        taken = Model.load(model).copy()
        take_branch(taken.graph, "chosen", value)
        proto = taken.to_proto()
        onnx.checker.check_model(proto, full_check=True)
        assert not any(node.op_type == "If" for node in proto.graph.node)
        assert [info.name for info in proto.graph.input] == ["x", "chosen"]
        for own, wanted in zip(outputs_of(proto, value), outputs_of(model, value), strict=True):
            np.testing.assert_array_equal(own, wanted)


def test_nodes_around_a_choice_read_and_make_its_values() -> None:
    then = body([node("Mul", ["a", "weight"], "t"), node("Neg", ["t"], "u")], ["u", "t"])
    other = body([node("Add", ["x", "c"], "t2"), node("Abs", ["t2"], "u2")], ["t2", "u2"], {"c": 5.0})
    nodes = [
        node("Relu", ["x"], "a"),
        choice("chosen", then, other, ["p", "q"]),
        node("Sub", ["p", "q"], "y"),
    ]
    assert_same_with_a_branch(model_of(nodes, ["y", "q"]))


@pytest.mark.parametrize("dims", [[], [1]])
def test_results_may_be_constants_outer_values_or_one_value_twice(dims: list[int]) -> None:
    # A graph's result has to be made within it, by onnxruntime's rules; an initializer is.
    then = body([node("Neg", ["x"], "t")], ["t", "t", "c"], {"c": 7.0})
    other = body([node("Identity", ["weight"], "t2"), node("Abs", ["x"], "u2")], ["t2", "u2", "d"], {"d": 8.0})
    nodes = [choice("chosen", then, other, ["p", "q", "r"]), node("Add", ["q", "r"], "y")]
    assert_same_with_a_branch(model_of(nodes, ["p", "q", "r", "y"], dims))


def test_two_choices_may_use_one_name_for_two_values() -> None:
    def bodies(first: str, second: str) -> tuple[onnx.GraphProto, onnx.GraphProto]:
        return (
            body([node(first, ["x"], "t"), node("Abs", ["t"], "u")], ["u"]),
            body([node(second, ["x"], "t"), node("Neg", ["t"], "u")], ["u"]),
        )

    nodes = [
        choice("chosen", *bodies("Relu", "Exp"), ["p"]),
        choice("chosen", *bodies("Exp", "Relu"), ["q"]),
        node("Sub", ["p", "q"], "y"),
    ]
    assert_same_with_a_branch(model_of(nodes, ["y"]))


def test_a_choice_within_a_branch_reads_what_the_branch_makes() -> None:
    inner = choice("big", body([node("Neg", ["t"], "v")], ["v"]), body([node("Exp", ["t"], "w")], ["w"]), ["z"])
    sums = [
        node("ReduceSum", ["t"], "s", keepdims=0),
        node("Cast", ["s"], "big", to=TensorProto.BOOL),
    ]
    then = body([node("Mul", ["x", "weight"], "t"), *sums, inner], ["t", "z"])
    other = body([node("Neg", ["x"], "t3"), node("Abs", ["x"], "z3")], ["t3", "z3"])
    model = model_of([choice("chosen", then, other, ["p", "q"])], ["p", "q"])
    for value in (True, False):
        taken = Model.load(model).copy()
        take_branch(taken.graph, "chosen", value)
        for own, wanted in zip(outputs_of(taken.to_proto(), value), outputs_of(model, value), strict=True):
            np.testing.assert_array_equal(own, wanted)


def test_a_condition_that_is_computed_is_none_that_an_input_chooses() -> None:
    nodes = [
        helper.make_node("Not", ["chosen"], ["turned"], "not"),
        choice("turned", body([node("Neg", ["x"], "t")], ["t"]), body([node("Abs", ["x"], "u")], ["u"]), ["y"]),
    ]
    assert choosing_inputs(Model.load(model_of(nodes, ["y"])).graph) == ()
