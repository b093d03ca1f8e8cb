"""Nodes that resemble attention and are not: the kernels leave them alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attention_nets import DEPTH, HEADS, TOKENS, WIDTH, AttentionNet, attentions_of
from sparse_nets import assert_same_at_batches

pytestmark = pytest.mark.usefixtures("every_region_pays")


def read_twice(of: str) -> AttentionNet:
    net = AttentionNet()
    q, k, v = net.projections()
    weighed = net.attend(net.parted(q), net.parted(k, turned=True), net.parted(v))
    net.output(net.op("Neg", {"scores": "scores", "weights": "softmax", "weighed": "weighed"}[of]))
    return net.ends(net.joined(weighed))


def other_axis() -> AttentionNet:
    net = AttentionNet()
    q, k, v = net.projections()
    scores = net.op("MatMul", net.parted(q), net.parted(k, turned=True))
    weighed = net.op("MatMul", net.op("Softmax", scores, name="softmax", axis=2), net.parted(v))
    return net.ends(net.joined(weighed))


def heads_stay_apart() -> AttentionNet:
    """What is joined is [n, heads, tokens, depth], without a transpose: other rows."""
    net = AttentionNet()
    q, k, v = net.projections()
    weighed = net.attend(net.parted(q), net.parted(k, turned=True), net.parted(v))
    return net.ends(net.op("Reshape", weighed, net.constant([0, TOKENS, WIDTH], dtype=np.int64)))


def heads_between_channels() -> AttentionNet:
    """A head's channels are not side by side."""
    net = AttentionNet()
    shape = net.constant([0, TOKENS, DEPTH, HEADS], dtype=np.int64)
    q, k, v = (net.op("Reshape", y, shape) for y in net.projections())
    q, v = (net.op("Transpose", y, perm=[0, 3, 1, 2]) for y in (q, v))
    return net.ends(net.joined(net.attend(q, net.op("Transpose", k, perm=[0, 3, 2, 1]), v)))


def masked_before_scaling() -> AttentionNet:
    net = AttentionNet()
    q, k, v = net.projections()
    scores = net.op("Add", net.op("MatMul", net.parted(q), net.parted(k, turned=True)), net.constant(np.ones(TOKENS)))
    weights = net.op("Softmax", net.op("Mul", scores, net.constant(0.5)), name="softmax", axis=-1)
    return net.ends(net.joined(net.op("MatMul", weights, net.parted(v))))


def values_of_other_tokens() -> AttentionNet:
    net = AttentionNet()
    q, k, v = net.projections()
    reversed_rows = net.op("Gather", v, net.constant(np.arange(TOKENS)[::-1].copy()), axis=1)
    whole = net.parted(reversed_rows)
    return net.ends(net.joined(net.attend(net.parted(q), net.parted(k, turned=True), whole)))


def queries_end_within_the_keys() -> AttentionNet:
    """Keys are followed back to the layer, queries only to what they share with the keys."""
    net = AttentionNet()
    q, _, v = net.projections()
    shape = net.constant([0, TOKENS, HEADS, DEPTH], dtype=np.int64)
    shared = net.op("Reshape", q, shape)
    halves = net.op("Mul", shared, net.constant(np.full(DEPTH, 0.5)))
    q, k = net.op("Transpose", halves, perm=[0, 2, 1, 3]), net.op("Transpose", shared, perm=[0, 2, 3, 1])
    return net.ends(net.joined(net.attend(q, k, net.parted(v))))


OTHERS: dict[str, tuple[Callable[[], AttentionNet], int]] = {
    "scores are an output": (lambda: read_twice("scores"), 0),
    "weights are an output": (lambda: read_twice("weights"), 0),
    "values are an output": (lambda: read_twice("weighed"), 0),
    "softmax over another axis": (other_axis, 0),
    "queries end within the keys": (queries_end_within_the_keys, 0),
    "heads stay apart": (heads_stay_apart, 0),
    "heads between channels": (heads_between_channels, 0),
    "mask before scaling": (masked_before_scaling, 0),
    # This one is attention: the values merely come from a node that the kernels do not have.
    "values of other tokens": (values_of_other_tokens, 1),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_attention_is_left_alone(name: str) -> None:
    make, count = OTHERS[name]
    program: Any = assert_same_at_batches(make().model(), [1, 2, 3])
    assert len(attentions_of(program)) == count
