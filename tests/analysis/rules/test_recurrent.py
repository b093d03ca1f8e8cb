"""LSTM, GRU, RNN: gates follow the hidden size, directions stay."""

from __future__ import annotations

import numpy as np
import pytest
from nets import Net, widen

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
WIDTHS = [("0.5", 11), ("0.75", 16), ("0.9", 25)]
HIDDEN, INPUTS, LENGTH = 8, 6, 5


def recurrent(net: Net, kind: str, directions: int = 1, *, stateful: bool = False, bias: bool = True) -> str:
    """The layer ``cell`` behind two dense ones, its output as ``[T, B, directions * H]``."""
    gates = GATES[kind]
    x = net.tokens(INPUTS, length=1, batch=LENGTH)
    inputs = [
        x,
        net.weight(directions, gates * HIDDEN, INPUTS, name="w", fan_in=INPUTS),
        net.weight(directions, gates * HIDDEN, HIDDEN, name="r", fan_in=HIDDEN),
        net.weight(directions, 2 * gates * HIDDEN, name="b", fan_in=9) if bias else "",
    ]
    if stateful:
        inputs += ["", *(net.weight(directions, 1, HIDDEN, name=f"state{i}", fan_in=1) for i in range(2))]
        inputs = inputs if kind == "LSTM" else inputs[:-1]
    direction = "bidirectional" if directions == 2 else "forward"
    outputs = 3 if kind == "LSTM" else 2
    y = net.op(kind, *inputs, name="cell", outputs=outputs, hidden_size=HIDDEN, direction=direction)[0]
    y = net.op("Transpose", y, perm=[0, 2, 1, 3])
    return str(net.op("Reshape", y, net.constant([0, 0, -1]), name="merged"))


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(("sparsity", "width"), WIDTHS)
def test_gates_follow_the_hidden_size(net: Net, kind: str, sparsity: str, width: int) -> None:
    h = recurrent(net, kind)
    net.tokens_end(h, HIDDEN)
    wide = widen(net, sparsity)
    inputs = {"0.5": 8, "0.75": 12, "0.9": 19}[sparsity]
    assert wide.shape("w") == (1, GATES[kind] * width, inputs)
    assert wide.shape("r") == (1, GATES[kind] * width, width)
    assert wide.shape("b") == (1, 2 * GATES[kind] * width)
    assert wide.attr("cell", "hidden_size") == width
    assert wide.shape("cell") == (LENGTH, 1, 1, width)
    assert wide.shape("cell.1") == (1, 1, width)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(("sparsity", "width"), WIDTHS)
def test_two_directions_stay_two(net: Net, kind: str, sparsity: str, width: int) -> None:
    h = recurrent(net, kind, 2)
    net.tokens_end(h, 2 * HIDDEN)
    wide = widen(net, sparsity)
    assert wide.shape("w")[:2] == (2, GATES[kind] * width)
    assert wide.shape("cell") == (LENGTH, 2, 1, width)
    assert wide.shape("merged") == (LENGTH, 1, 2 * width)
    assert wide.shape("after.weight")[0] == 2 * width


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("directions", [1, 2])
def test_stored_initial_states_follow_the_hidden_size(net: Net, kind: str, directions: int) -> None:
    h = recurrent(net, kind, directions, stateful=True)
    net.tokens_end(h, directions * HIDDEN)
    wide = widen(net)
    assert wide.shape("state0") == (directions, 1, 16)
    if kind == "LSTM":
        assert wide.shape("state1") == (directions, 1, 16)


def test_a_state_that_the_caller_gives_keeps_the_hidden_size(net: Net) -> None:
    x = net.tokens(INPUTS, length=1, batch=LENGTH)
    state = net.input("state", 1, 1, HIDDEN)
    weights = net.weight(1, 24, INPUTS, name="w", fan_in=INPUTS), net.weight(1, 24, HIDDEN, name="r", fan_in=HIDDEN)
    y = net.op("GRU", x, *weights, "", "", state, name="cell", outputs=2, hidden_size=HIDDEN)[0]
    net.tokens_end(net.op("Squeeze", y, net.constant([1])), HIDDEN)
    wide = widen(net)
    assert wide.attr("cell", "hidden_size") == HIDDEN
    assert wide.shape("w") == (1, 24, 12)
    assert "'state'" in wide.reason("r")


def test_both_weights_cost_a_step_each(net: Net) -> None:
    h = recurrent(net, "LSTM")
    net.tokens_end(h, HIDDEN)
    layers = {layer["name"]: layer for layer in widen(net).report["layers"]}
    assert layers["w"]["macs_before"] == LENGTH * 4 * HIDDEN * INPUTS
    assert layers["r"]["macs_before"] == LENGTH * 4 * HIDDEN * HIDDEN
    assert layers["w"]["status"] == layers["r"]["status"] == "sparse"
    assert layers["r"]["nnz"] == 4 * HIDDEN * HIDDEN


def test_peepholes_follow_the_hidden_size(net: Net) -> None:
    x = net.tokens(INPUTS, length=1, batch=LENGTH)
    weights = net.weight(1, 32, INPUTS, name="w", fan_in=INPUTS), net.weight(1, 32, HIDDEN, name="r", fan_in=HIDDEN)
    peepholes = net.weight(1, 24, name="p", fan_in=9)
    y = net.op("LSTM", x, *weights, "", "", "", "", peepholes, name="cell", outputs=3, hidden_size=HIDDEN)[0]
    net.tokens_end(net.op("Squeeze", y, net.constant([1])), HIDDEN)
    assert widen(net).shape("p") == (1, 48)


def test_two_layers_one_upon_the_other(net: Net) -> None:
    h = recurrent(net, "GRU", 2)
    weights = (
        net.weight(1, 30, 2 * HIDDEN, name="w2", fan_in=2 * HIDDEN),
        net.weight(1, 30, 10, name="r2", fan_in=10),
    )
    y = net.op("GRU", h, *weights, name="upper", outputs=2, hidden_size=10)[1]
    net.tokens_end(y, 10)
    wide = widen(net)
    assert wide.shape("w2") == (1, 60, 32)
    assert wide.shape("r2") == (1, 60, 20)


def test_lengths_of_sequences_are_left_alone(net: Net) -> None:
    x = net.tokens(INPUTS, length=1, batch=LENGTH)
    lengths = net.input("lengths", values=np.array([3], np.int32))
    weights = net.weight(1, 8, INPUTS, name="w", fan_in=INPUTS), net.weight(1, 8, HIDDEN, name="r", fan_in=HIDDEN)
    y = net.op("RNN", x, *weights, "", lengths, name="cell", outputs=2, hidden_size=HIDDEN)[0]
    net.tokens_end(net.op("Squeeze", y, net.constant([1])), HIDDEN)
    assert widen(net).shape("cell") == (LENGTH, 1, 1, 16)
