"""Passes say how far they are."""

from __future__ import annotations

from nets import Net

from sift_onnx.passes import Factorized
from sift_onnx.passes.progress import listening


def test_each_layer_is_reported_in_turn() -> None:
    net = Net()
    h = net.op("Relu", net.dense(net.tokens(8), 8, 8, name="a"))
    net.tokens_end(net.op("Relu", net.dense(h, 8, 8, name="b")), 8)
    heard: list[tuple[int, int, str]] = []

    with listening(lambda *said: heard.append(said)):
        Factorized(0.5)(net.model())
    count = len(heard)
    Factorized(0.5)(net.model())

    assert [entry[:2] for entry in heard] == [(i, count) for i in range(count)]
    assert {"a.weight", "b.weight"} <= {name for *_, name in heard}
    assert len(heard) == count
