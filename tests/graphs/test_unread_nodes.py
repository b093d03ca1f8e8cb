"""Nodes that nothing reads are removed, and no others."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.graphs.unread_nodes import drop_makers, drop_unread


def chain() -> gs.Graph:
    """``y = Relu(x)``; besides, ``Identity(Shape(x))``, which nothing reads."""
    x, y, shape, copy = (gs.Variable(name, np.float32) for name in ("x", "y", "shape", "copy"))
    nodes = [gs.Node("Relu", inputs=[x], outputs=[y]), gs.Node("Shape", inputs=[x], outputs=[shape])]
    nodes.append(gs.Node("Identity", inputs=[shape], outputs=[copy]))
    return gs.Graph(nodes, [x], [y])


def ops(graph: gs.Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_makers_of_a_tensor_go_as_far_as_nothing_else_reads_them() -> None:
    graph = chain()
    drop_makers(graph, [graph.nodes[2].outputs[0]])
    assert ops(graph) == ["Relu"]


def test_makers_of_what_is_read_stay() -> None:
    graph = chain()
    drop_makers(graph, [graph.nodes[1].outputs[0], graph.outputs[0]])
    assert ops(graph) == ["Relu", "Shape", "Identity"]


def test_makers_in_the_graph_around_a_subgraph_stay() -> None:
    outer = chain()
    inner = gs.Graph([gs.Node("Not", inputs=[outer.nodes[2].outputs[0]], outputs=[gs.Variable("not", bool)])])
    unread = inner.nodes[0].outputs[0]
    drop_makers(inner, [unread])
    assert ops(inner) == []
    assert ops(outer) == ["Relu", "Shape", "Identity"]


def test_only_unread_nodes_of_the_operators_are_dropped() -> None:
    graph = chain()
    drop_unread(graph, {"Identity", "Relu"})
    assert ops(graph) == ["Relu", "Shape"]
    drop_unread(graph, {"Shape"})
    assert ops(graph) == ["Relu"]
