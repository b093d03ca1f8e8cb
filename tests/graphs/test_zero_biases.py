"""Layers lose biases that a graph makes of zeros, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from nets import Net

from sift_onnx.graphs.zero_biases import drop_zero_biases, has_zero_biases
from sift_onnx.model import Model


def expanded(net: Net, value: Any) -> str:
    """As torch's dynamo exporter writes it, if it does not optimize."""
    sizes = net.op("Expand", net.op("Shape", "w", end=1), net.constant([1], dtype=np.int64))
    return str(net.op("Expand", net.op("CastLike", net.constant(value, dtype=np.float32), "x"), sizes))


@pytest.mark.parametrize(("value", "is_dropped"), [(0, True), ([0], True), (0.5, False), ([0, 0, 0, 0], False)])
def test_the_bias_of_a_convolution(value: Any, is_dropped: bool) -> None:
    net = Net()
    x = net.input("x", 1, 3, 5, 5)
    weight = net.weight(4, 3, 3, 3, name="w")
    bias = net.constant(value, dtype=np.float32) if np.size(value) > 1 else expanded(net, value)
    net.output(net.op("Relu", net.op("Conv", x, weight, bias)))
    model = Model.load(net.model())
    assert has_zero_biases(model.graph) == is_dropped
    assert drop_zero_biases(model.graph) == is_dropped
    if is_dropped:
        assert [node.op for node in model.graph.nodes] == ["Conv", "Relu"]
    found, wanted = (
        onnxruntime.InferenceSession(proto.SerializeToString()).run(None, net.feeds)[0]
        for proto in (model.to_proto(), net.model())
    )
    # onnxruntime adds up in another order.
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
