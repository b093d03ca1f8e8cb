"""Why a node has no kernel, in plain English."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nets import Net

from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.rules import lower
from sift_onnx.backends.lowering.rules.step import NotLowered
from sift_onnx.model import Model


@pytest.mark.parametrize(
    "stumble", [lambda: np.broadcast_to(np.ones(5), (1,)), lambda: {}["x"], lambda: 1 // 0, lambda: len(3)]
)
def test_a_rule_that_stumbles_names_the_operands_and_their_sizes(monkeypatch: pytest.MonkeyPatch, stumble: Any) -> None:
    net = Net()
    x = net.input("x", 2, 7, 5, declared=["n", 7, 5])
    net.output(net.op("Mul", x, net.constant(np.ones(5), name="factors")))
    monkeypatch.setattr(lower._RULES, "find", lambda _op, _domain: lambda _node: stumble())
    with pytest.raises(NotLowered) as caught:
        lower.lower_node(GraphView(Model.load(net.model())), 0, {}, {})
    wanted = "its operands and attributes do not fit each other: 'x' of shape [?, 7, 5], 'factors' of shape [5]"
    assert str(caught.value) == wanted
