"""Choices that constants and known sizes decide, against onnxruntime on the graph that chooses."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from nets import Net
from onnx import TensorProto, helper

from sift_onnx.model import Model
from sift_onnx.shapes.decided_branches import with_decided_branches


def branch(op: str, name: str, *inputs: str) -> onnx.GraphProto:
    node = helper.make_node(op, list(inputs), [name], f"{name}.node")
    return helper.make_graph([node], op, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])


def chosen_by_size(rows: int | str, least: int = 4) -> onnx.ModelProto:
    """The sum of the input with itself if it has more rows than ``least``, else its negative; then that again."""
    net = Net(opset=17)
    value = net.input("x", 3, 2, declared=[rows, 2])
    for name in ("first", "second"):
        size = net.op("Gather", net.op("Shape", value), net.constant(0, dtype=np.int64))
        more = net.op("Greater", size, net.constant(least, dtype=np.int64))
        branches = {
            "then_branch": branch("Add", f"{name}.then", value, value),
            "else_branch": branch("Neg", f"{name}.else", value),
        }
        value = net.op("If", more, name=name, **branches)
    net.output(value)
    return net.model()


def operators(model: Model) -> list[str]:
    return [node.op for node in model.graph.nodes if node.op in ("If", "Add", "Neg")]


@pytest.mark.parametrize(("rows", "expected"), [(3, ["Neg", "Neg"]), (6, ["Add", "Add"]), ("n", ["If", "If"])])
def test_sizes_decide_where_they_are_numbers(rows: int | str, expected: list[str]) -> None:
    proto = chosen_by_size(rows)
    model = Model.load(proto)
    decided = with_decided_branches(model)
    assert operators(decided) == expected
    assert operators(model) == ["If", "If"]
    made = decided.to_proto()
    onnx.checker.check_model(made, full_check=True)
    x = np.arange(12, dtype=np.float32).reshape(6, 2)[: rows if isinstance(rows, int) else 6]
    results = [
        onnxruntime.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[
            0
        ]
        for each in (proto, made)
    ]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("value", [True, False])
def test_constants_decide(value: bool) -> None:
    net = Net(opset=17)
    x = net.input("x", 3, 2)
    branches = {"then_branch": branch("Add", "then", x, x), "else_branch": branch("Neg", "other", x)}
    net.output(net.op("If", net.constant([value], dtype=np.bool_), **branches))
    assert operators(with_decided_branches(Model.load(net.model()))) == ["Add" if value else "Neg"]


def test_inputs_do_not_decide() -> None:
    net = Net(opset=17)
    x = net.input("x", 3, 2)
    flag = net.op("Greater", net.op("ReduceSum", x, keepdims=0), net.constant(0, dtype=np.float32))
    branches = {"then_branch": branch("Add", "then", x, x), "else_branch": branch("Neg", "other", x)}
    net.output(net.op("If", flag, **branches))
    model = Model.load(net.model())
    assert with_decided_branches(model) is model
