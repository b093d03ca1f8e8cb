"""Nodes come in any order, and are sorted; a graph with a cycle is refused by name."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from nets import Net
from onnx import TensorProto, helper

import sift_onnx
from sift_onnx.errors import ModelReadError
from sift_onnx.graphs.topological_order import index_in_cycle, sort_nodes, topological_order


def network() -> onnx.ModelProto:
    net = Net()
    hidden = net.op("Relu", net.conv(net.images(4), 4, 8, 3))
    hidden = net.op("Add", net.op("Relu", net.conv(hidden, 8, 8, 3)), hidden)
    net.images_end(net.conv(hidden, 8, 4), 4)
    return net.model()


@pytest.mark.parametrize("seed", range(5))
def test_a_graph_in_any_order_gives_what_the_sorted_one_does(seed: int) -> None:
    graph = gs.import_onnx(network())
    wanted = gs.export_onnx(sift_onnx.transform(graph, wide=0.5))
    random.Random(seed).shuffle(graph.nodes)
    shuffled = list(graph.nodes)
    found = gs.export_onnx(sift_onnx.transform(graph, wide=0.5))

    onnx.checker.check_model(found, full_check=True)
    assert {t.name: t.raw_data for t in found.graph.initializer} == {
        t.name: t.raw_data for t in wanted.graph.initializer
    }
    assert list(graph.nodes) == shuffled


@pytest.mark.parametrize("seed", range(3))
def test_a_file_in_any_order_is_read(seed: int, tmp_path: Path) -> None:
    """onnxruntime's converter to float16 appends casts of inputs, and runs such files."""
    sorted_ = network()
    shuffled = network()
    nodes = list(shuffled.graph.node)
    random.Random(seed).shuffle(nodes)
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(nodes)
    path = tmp_path / "shuffled.onnx"
    path.write_bytes(shuffled.SerializeToString())
    for source in (shuffled, path):
        model = sift_onnx.load(source)
        assert [node.name for node in model.graph.nodes] == [node.name for node in sorted_.graph.node]
    assert sift_onnx.inspect(path).to_dict()["layers"] == sift_onnx.inspect(sorted_).to_dict()["layers"]
    feeds = {"x": np.random.default_rng(seed).standard_normal((1, 3, 8, 8)).astype(np.float32)}
    found = sift_onnx.InferenceSession(path).run(None, feeds)
    for array, wanted in zip(found, sift_onnx.InferenceSession(sorted_).run(None, feeds), strict=True):
        np.testing.assert_array_equal(array, wanted)


def test_what_is_sorted_stays_as_it_is() -> None:
    graph = gs.import_onnx(network())
    before = list(graph.nodes)
    sort_nodes(graph)

    assert all(a is b for a, b in zip(graph.nodes, before, strict=True))


def test_what_a_subgraph_captures_comes_first() -> None:
    inner = helper.make_graph(
        [helper.make_node("Relu", ["hidden"], ["y"])], "branch", [], [helper.make_tensor_value_info("y", 1, [2])]
    )
    nodes = [
        helper.make_node("Neg", ["x"], ["hidden"]),
        helper.make_node("If", ["condition"], ["z"], then_branch=inner, else_branch=inner),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
        helper.make_tensor_value_info("condition", TensorProto.BOOL, []),
    ]
    graph = gs.import_onnx(
        helper.make_model(
            helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("z", TensorProto.FLOAT, [2])])
        )
    )
    graph.nodes.reverse()
    sort_nodes(graph)

    assert [node.op for node in graph.nodes] == ["Neg", "If"]


def test_a_cycle_is_refused() -> None:
    a, b = gs.Variable("a"), gs.Variable("b")
    graph = gs.Graph([gs.Node("Relu", "first", {}, [a], [b]), gs.Node("Relu", "second", {}, [b], [a])])

    with pytest.raises(ModelReadError, match=r"'first' \(Relu\) is part of a cycle"):
        sift_onnx.load(graph)


def test_of_a_cycle_and_what_waits_for_it_the_cycle_is_named() -> None:
    needs = [{2}, {0}, {3}, {2}, set()]
    assert topological_order(needs) == [4]
    assert index_in_cycle(needs, [4]) in (2, 3)
    assert index_in_cycle([set(), {1}], [0]) == 1


def test_of_those_that_can_run_the_first_does() -> None:
    assert topological_order([{3}, set(), {0}, set(), {1, 2}]) == [1, 3, 0, 2, 4]
