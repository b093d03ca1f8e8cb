"""Wide with ``init="embed"``: recurrent layers."""

from __future__ import annotations

import numpy as np
import pytest
from embedded_models import embedded
from nets import Net
from normalized_nets import LENGTH, WIDTH, bias, layer_norm

from sift_onnx.graphs.constants import array_of


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_layer_grows(kind: str, direction: str, has_bias: bool) -> None:
    gates, directions, units = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 2 if direction == "bidirectional" else 1, 6
    net = Net()
    x = net.op("Transpose", net.tokens(WIDTH, LENGTH), perm=[1, 0, 2])
    weights = [net.weight(directions, gates * units, n, fan_in=n, name=f"r{n}.weight") for n in (WIDTH, units)]
    biases = [bias(net, directions, 2 * gates * units)] if has_bias else []
    y = net.op(kind, x, *weights, *biases, hidden_size=units, direction=direction, outputs=2)[0]
    y = net.op("Reshape", net.op("Transpose", y, perm=[2, 0, 1, 3]), net.constant([1, LENGTH, directions * units]))
    net.tokens_end(y, directions * units)
    result = embedded(net.model(), net.feeds)
    assert array_of(result.model.initializers()["r6.weight"]).shape == (directions, gates * 12, 12)
    node = next(node for node in result.model.graph.nodes if node.op == kind)
    assert np.count_nonzero(array_of(node.inputs[3])) >= directions * 2 * gates * 6


def test_what_a_recurrent_layer_gives_is_normalized() -> None:
    net = Net()
    x = net.op("Transpose", net.tokens(WIDTH, LENGTH), perm=[1, 0, 2])
    weights = [net.weight(1, 4 * WIDTH, WIDTH, fan_in=WIDTH) for _ in range(2)]
    y = net.op("LSTM", x, *weights, bias(net, 1, 8 * WIDTH), hidden_size=WIDTH, outputs=2)[0]
    y = net.op("Squeeze", net.op("Transpose", y, perm=[2, 0, 1, 3]), net.constant([2]))
    net.tokens_end(layer_norm(net, y), WIDTH)
    result = embedded(net.model(), net.feeds)
    assert array_of(result.model.initializers()["after.weight"]).shape[0] == 16
