"""What the analysis does around the rules: subgraphs, order, operators without a rule."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from nets import Net, widen
from onnx import TensorProto, helper

from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.errors import UnsupportedError
from sift_onnx.model import Model


def branch(name: str, nodes: list[onnx.NodeProto], *shape: int) -> onnx.GraphProto:
    """A subgraph whose output, named like the subgraph, is made by the last of ``nodes``."""
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)])


def choice(net: Net, read: list[str], *shape: int, depth: int = 1, name: str = "choice") -> str:
    """An If whose branches sum up the tensors ``read``, inside of ``depth - 1`` further Ifs."""
    flag = f"{name}.flag"
    net.input(flag, values=np.asarray(True))

    def nested(side: str, level: int) -> onnx.GraphProto:
        label = f"{name}.{side}{level}"
        if level == 1:
            return branch(label, [helper.make_node("Sum", read, [label])], *shape)
        inner = [nested(f"{side}.{s}", level - 1) for s in ("then", "else")]
        node = helper.make_node("If", [flag], [label], then_branch=inner[0], else_branch=inner[1])
        return branch(label, [node], *shape)

    branches = {"then_branch": nested("then", depth), "else_branch": nested("else", depth)}
    return str(net.op("If", flag, name=name, **branches))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_what_a_subgraph_reads_keeps_its_size(net: Net, depth: int) -> None:
    h = net.op("Relu", net.dense(net.tokens(6), 6, 7, name="captured"))
    net.tokens_end(choice(net, [h, h], 1, 5, 7, depth=depth), 7)
    wide = widen(net)
    assert wide.shape("captured.weight") == (12, 7)
    assert "a subgraph of If reads it" in wide.reason("captured.weight")


def test_an_initializer_that_a_subgraph_reads_before_the_main_graph_does_keeps_its_size(net: Net) -> None:
    bias = net.constant(np.linspace(1, 2, 7), "bias")
    net.output(choice(net, [bias, bias], 7))
    h = net.op("Add", net.dense(net.tokens(6), 6, 7, name="biased"), bias)
    net.tokens_end(h, 7)
    wide = widen(net)
    assert wide.shape("bias") == (7,)
    assert wide.shape("biased.weight") == (12, 7)


def test_a_size_that_a_subgraph_reads_stays(net: Net) -> None:
    h = net.op("Relu", net.dense(net.tokens(6), 6, 7, name="measured"))
    size = net.op("Cast", net.op("Shape", h, start=2), to=TensorProto.INT64, name="size")
    flag = net.input("flag", values=np.asarray(True))
    filled = [branch(side, [helper.make_node("ConstantOfShape", [size], [side])], 7) for side in ("filled", "filled2")]
    zeros = net.op("If", flag, then_branch=filled[0], else_branch=filled[1])
    net.output(zeros)
    net.tokens_end(h, 7)
    assert widen(net).shape("measured.weight") == (12, 7)


def test_an_operator_without_a_rule_keeps_the_sizes_whose_numbers_it_reads(net: Net) -> None:
    h = net.op("Relu", net.dense(net.tokens(6), 6, 7, name="measured"))
    size = net.op("Squeeze", net.op("Shape", h, start=2))
    strange = net.op("Mystery", size, domain="nobody", name="strange")
    net.tokens_end(h, 7)
    net.value_infos.append(helper.make_tensor_value_info(strange, TensorProto.FLOAT, [7]))
    analysis = analyze(Model.load(net.model()))
    assert [node.name for node in analysis.unknown] == ["strange"]
    cause = analysis.system.why_pinned(analysis.layers["measured.weight"].axes[1].size)
    assert cause is not None
    assert cause.reason == "no rule covers nobody::Mystery"


def test_a_cycle_is_refused_by_the_name_of_a_node_in_it() -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"], "one"), helper.make_node("Relu", ["a"], ["b"], "two")]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "b")]
    graph = helper.make_graph(nodes, "cycle", values[:1], values[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    with pytest.raises(UnsupportedError, match="'one'"):
        analyze(Model.load(proto))


def test_a_cycle_is_not_blamed_on_a_node_that_only_waits_for_it() -> None:
    nodes = [
        helper.make_node("Strange", ["a"], ["y"], "behind", domain="nobody"),
        helper.make_node("Strange", ["x", "b"], ["a"], "one", domain="nobody"),
        helper.make_node("Strange", ["a"], ["b"], "two", domain="nobody"),
    ]
    with pytest.raises(UnsupportedError, match=r"'(one|two)'"):
        analyze(Model.load(of_nobody(nodes, "x", "y")))


def test_a_chain_of_20000_nodes_back_to_front_is_put_in_order() -> None:
    # One pass over the waiting nodes for each that can run would take minutes.
    chain = [helper.make_node("Strange", [f"t{i}"], [f"t{i + 1}"], f"n{i}", domain="nobody") for i in range(20_000)]
    analysis = analyze(Model.load(of_nobody(chain[::-1], "t0", "t20000")))
    assert [node.name for node in analysis.order] == [node.name for node in chain]


def of_nobody(nodes: list[onnx.NodeProto], read: str, made: str) -> onnx.ModelProto:
    """A model of operators that shape inference does not know, and lets pass in any order."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in (read, made)]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("nobody", 1)], ir_version=10
    )
