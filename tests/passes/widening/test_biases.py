"""Which added features need a bias: those that nothing shifts before an activation."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from sift_onnx.passes.widening.biases import reach_a_shift


def chain(*ops: str) -> gs.Graph:
    """``x``, and what nodes make of it one after another; normalizations have parameters."""
    tensor = gs.Variable("x", np.float32, (1, 4, 1, 3))
    graph = gs.Graph(inputs=[tensor], opset=17)
    for i, op in enumerate(ops):
        made = gs.Variable(f"t{i}", np.float32)
        parameters = [gs.Constant(f"p{i}_{j}", np.ones(4, np.float32)) for j in range(4)]
        graph.nodes.append(gs.Node(op, f"n{i}", {}, [tensor, *(parameters if "Norm" in op else [])], [made]))
        tensor = made
    graph.outputs = [tensor]
    return graph


@pytest.mark.parametrize("between", ["Reshape", "Squeeze", "Transpose", "Unsqueeze", "MaxPool"])
def test_a_normalization_shifts_what_only_moves_on_the_way(between: str) -> None:
    graph = chain("Conv", between, "BatchNormalization")
    assert reach_a_shift(graph.nodes, graph, lambda tensor: True)["t0"]


@pytest.mark.parametrize("between", ["Relu", "Conv", "Sigmoid"])
def test_an_activation_or_a_layer_on_the_way_needs_features_that_are_shifted(between: str) -> None:
    graph = chain("Conv", between, "BatchNormalization")
    assert not reach_a_shift(graph.nodes, graph, lambda tensor: True)["t0"]


def test_what_the_model_returns_is_shifted_by_nothing() -> None:
    graph = chain("Conv", "Identity")
    assert not reach_a_shift(graph.nodes, graph, lambda tensor: True)["t0"]


def test_what_a_branch_reads_is_shifted_by_nothing() -> None:
    graph = chain("Conv", "BatchNormalization")
    t0 = graph.nodes[0].outputs[0]
    inner = gs.Variable("inner", np.float32)
    branch = gs.Graph([gs.Node("Squeeze", "inner", {}, [t0], [inner])], outputs=[inner], opset=17)
    condition, chosen = gs.Variable("condition", np.bool_, ()), gs.Variable("chosen", np.float32)
    graph.nodes.append(gs.Node("If", "if", {"then_branch": branch, "else_branch": branch}, [condition], [chosen]))
    assert not reach_a_shift(graph.nodes, graph, lambda tensor: True)["t0"]
