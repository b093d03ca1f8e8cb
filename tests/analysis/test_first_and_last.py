"""First and last layers, by position in the graph."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from nets import Net
from onnx import TensorProto, helper

from sift_onnx.analysis.first_and_last import first_and_last
from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.model import Model


@pytest.fixture
def net() -> Net:
    """An empty graph."""
    return Net()


def roles(net: Net) -> dict[str, list[str]]:
    """Names of first and of last layers, without their ``.weight``."""
    found: dict[str, list[str]] = {"first layer": [], "last layer": []}
    for name, role in first_and_last(analyze(Model.load(net.model()))).items():
        found[role].append(name.removesuffix(".weight"))
    return {role.removesuffix(" layer"): sorted(names) for role, names in found.items()}


def test_a_chain_has_one_of_each(net: Net) -> None:
    h = net.input("x", 1, 3, 8, 8)
    for i, (inputs, outputs) in enumerate([(3, 4), (4, 5), (5, 6), (6, 2)]):
        h = net.op("Relu", net.conv(h, inputs, outputs, name=f"conv{i}"))
    net.output(h)
    assert roles(net) == {"first": ["conv0"], "last": ["conv3"]}


def test_a_layer_alone_is_the_first(net: Net) -> None:
    net.output(net.dense(net.input("x", 2, 3), 3, 4, name="only"))
    assert roles(net) == {"first": ["only"], "last": []}


def test_both_sides_of_residual_blocks_lie_between(net: Net) -> None:
    """The shortcut's projection comes after the stem and before the head, as does the branch."""
    stem = net.conv(net.input("x", 1, 3, 8, 8), 3, 4, name="stem")
    branch = net.conv(net.op("Relu", net.conv(stem, 4, 4, 3, name="a")), 4, 6, name="b")
    h = net.op("Add", branch, net.conv(stem, 4, 6, name="shortcut"))
    pooled = net.op("Flatten", net.op("GlobalAveragePool", h))
    net.output(net.dense(pooled, 6, 2, name="head"))
    assert roles(net) == {"first": ["stem"], "last": ["head"]}


def test_every_input_has_its_first_layer_and_every_output_its_last(net: Net) -> None:
    image = net.dense(net.input("pixels", 2, 3), 3, 4, name="image")
    text = net.dense(net.input("ids", 2, 5), 5, 4, name="text")
    both = net.dense(net.op("Add", image, text), 4, 6, name="both")
    net.output(net.dense(both, 6, 2, name="classes"))
    net.output(net.dense(net.op("Relu", net.dense(both, 6, 6, name="hidden")), 6, 3, name="boxes"))
    assert roles(net) == {"first": ["image", "text"], "last": ["boxes", "classes"]}


def test_a_mask_that_is_only_added_makes_no_late_layer_a_first_one(net: Net) -> None:
    """An attention mask is a graph input, and joins the scores of every block."""
    mask = net.input("mask", 1, 5, 5)
    h = net.dense(net.input("x", 1, 5, 4), 4, 4, name="embed")
    for i in range(2):
        q, k, v = (net.dense(h, 4, 4, name=f"{part}{i}") for part in "qkv")
        scores = net.op("Add", net.op("MatMul", q, net.op("Transpose", k, perm=[0, 2, 1])), mask)
        h = net.dense(net.op("MatMul", net.op("Softmax", scores), v), 4, 4, name=f"out{i}")
    net.output(net.dense(h, 4, 2, name="head"))
    assert roles(net) == {"first": ["embed"], "last": ["head"]}


def test_a_layer_of_its_own_on_a_late_input_is_a_first_one(net: Net) -> None:
    h = net.dense(net.input("x", 2, 3), 3, 4, name="stem")
    time = net.dense(net.op("Relu", net.dense(net.input("t", 2, 1), 1, 4, name="time")), 4, 4, name="time2")
    net.output(net.dense(net.op("Add", h, time), 4, 2, name="head"))
    assert roles(net) == {"first": ["stem", "time"], "last": ["head"]}


def test_an_output_in_the_middle_does_not_make_the_layers_before_it_last_ones(net: Net) -> None:
    h = net.dense(net.dense(net.input("x", 2, 3), 3, 4, name="a"), 4, 4, name="b")
    net.output(net.op("Relu", h))
    net.output(net.dense(h, 4, 2, name="c"))
    assert roles(net) == {"first": ["a"], "last": ["c"]}


def test_a_layer_used_again_after_others_is_neither(net: Net) -> None:
    shared = net.weight(4, 4, name="again.weight")
    h = net.op("MatMul", net.input("x", 2, 4), shared)
    h = net.op("MatMul", net.dense(h, 4, 4, name="between"), shared)
    net.output(h)
    # The first use sees the input and the second makes the output, but each has a layer on its other side too.
    assert roles(net) == {"first": [], "last": []}


def test_a_layer_that_only_follows_itself_is_a_first_one(net: Net) -> None:
    shared = net.weight(4, 4, name="shared.weight")
    h = net.op("MatMul", net.op("Relu", net.op("MatMul", net.input("x", 2, 4), shared)), shared)
    net.output(net.dense(h, 4, 2, name="head"))
    assert roles(net) == {"first": ["shared"], "last": ["head"]}


def test_twin_inputs_share_a_first_layer(net: Net) -> None:
    shared = net.weight(4, 6, name="shared.weight")
    a, b = (net.op("MatMul", net.input(name, 2, 4), shared) for name in "ab")
    net.output(net.dense(net.op("Sub", a, b), 6, 2, name="head"))
    assert roles(net) == {"first": ["shared"], "last": ["head"]}


def test_the_size_of_a_tensor_is_not_what_it_holds(net: Net) -> None:
    """The second input is reshaped like the features of the first; that does not put its layer behind theirs."""
    a = net.dense(net.input("a", 2, 3), 3, 4, name="a1")
    b = net.op("Reshape", net.input("b", 8), net.op("Concat", net.op("Shape", a, end=1), net.constant([4]), axis=0))
    b = net.dense(b, 4, 4, name="b1")
    net.output(net.dense(net.op("Add", a, b), 4, 2, name="head"))
    assert roles(net) == {"first": ["a1", "b1"], "last": ["head"]}


def test_every_weight_of_a_recurrent_layer_has_its_role(net: Net) -> None:
    hidden = 6
    w, r = net.weight(1, 4 * hidden, 5, name="w"), net.weight(1, 4 * hidden, hidden, name="r")
    h = net.op("LSTM", net.input("x", 7, 2, 5), w, r, hidden_size=hidden, name="lstm")
    h = net.op("Reshape", h, net.constant([7, 2, hidden]))
    net.output(net.dense(net.dense(h, hidden, 4, name="after"), 4, 2, name="head"))
    assert roles(net) == {"first": ["r", "w"], "last": ["head"]}


def test_a_layer_that_a_subgraph_reads_comes_before_what_the_subgraph_makes(net: Net) -> None:
    def branch(name: str, op: str) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4])
        return helper.make_graph([helper.make_node(op, ["hidden"], [name])], name, [], [output])

    net.dense(net.input("x", 2, 3), 3, 4, name="hidden")
    flag = net.input("flag", values=np.asarray(True))
    h = net.op("If", flag, then_branch=branch("then", "Relu"), else_branch=branch("else", "Neg"), name="choice")
    net.output(net.dense(h, 4, 2, name="head"))
    assert roles(net) == {"first": ["hidden"], "last": ["head"]}
