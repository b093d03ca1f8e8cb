"""Walks back through a graph."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.graphs.walks import axis_order, origin_of


def chain(*steps: tuple[str, dict[str, object]], domain: str | None = None) -> tuple[gs.Constant, gs.Tensor]:
    """A constant of three axes, and what nodes make of it, one after another."""
    stored = gs.Constant("w", np.zeros((2, 3, 4), np.float32))
    tensor: gs.Tensor = stored
    for i, (op, attributes) in enumerate(steps):
        made = gs.Variable(f"t{i}")
        gs.Node(op, f"n{i}", attributes, [tensor], [made], domain=domain)
        tensor = made
    return stored, tensor


def test_the_walk_ends_where_an_operator_is_not_passed():
    stored, end = chain(("Identity", {}), ("Relu", {}), ("Cast", {"to": 1}))
    origin, passed = origin_of(end, ("Cast", "Identity"))
    assert origin.inputs[0].op == "Relu"
    assert [node.op for node in passed] == ["Cast"]
    assert origin_of(end, ("Cast", "Identity", "Relu"))[0] is stored


def test_operators_of_other_domains_are_not_passed():
    _, end = chain(("Identity", {}), domain="com.example")
    assert origin_of(end, ("Identity",)) == (end, [])


def test_axes_follow_the_transposes_on_the_way():
    stored, end = chain(("Transpose", {"perm": [1, 2, 0]}), ("Cast", {"to": 1}), ("Transpose", {"perm": [0, 2, 1]}))
    origin, passed = origin_of(end, ("Cast", "Transpose"))
    assert origin is stored
    values = np.zeros((2, 3, 4)).transpose(1, 2, 0).transpose(0, 2, 1)
    assert tuple(stored.shape[axis] for axis in axis_order(passed, 3)) == values.shape


def test_a_transpose_without_a_permutation_reverses_the_axes():
    _, end = chain(("Transpose", {}))
    assert axis_order(origin_of(end, ("Transpose",))[1], 3) == (2, 1, 0)
