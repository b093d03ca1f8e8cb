"""Names of nodes and operators in messages."""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs
import pytest

from sift_onnx.operators.labels import node_label, node_name, operator_label, operator_name, qualified_operator


def nodes(name: str, *outputs: str):
    """The same node in both forms."""
    proto = onnx.helper.make_node("Conv", [], list(outputs), name=name)
    return proto, gs.Node("Conv", name, outputs=[gs.Variable(output) for output in outputs])


@pytest.mark.parametrize(
    ("name", "outputs", "expected"),
    [("first", ["y"], "first"), ("", ["", "mask"], "mask"), ("", [], "Conv")],
    ids=["its name", "its first named output", "its operator"],
)
def test_a_node_is_called_by(name, outputs, expected):
    for node in nodes(name, *outputs):
        assert node_name(node) == expected
        assert node_label(node) == f"{expected!r} (Conv)"


def test_an_operator_is_shown_with_its_domain_where_that_is_not_the_standard_one():
    assert operator_name("Conv", None) == operator_name("Conv", "") == operator_name("Conv", "ai.onnx") == "Conv"
    assert operator_name("Snake", "com.example") == "com.example::Snake"
    assert qualified_operator("Conv", None) == "ai.onnx::Conv"
    assert operator_label(gs.Node("Snake", "s", domain="com.example")) == "com.example::Snake (node 's')"
