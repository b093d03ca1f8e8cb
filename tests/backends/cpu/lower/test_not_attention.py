"""Nodes that resemble attention and are not: the kernels leave them alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attention_nets import TOKENS, AttentionNet, attentions_of
from sparse_nets import assert_same_at_batches

pytestmark = pytest.mark.usefixtures("every_region_pays")


def read_twice(of: str) -> AttentionNet:
    net = AttentionNet()
    q, k, v = net.projections()
    weighed = net.attend(net.parted(q), net.parted(k, turned=True), net.parted(v))
    net.output(net.op("Neg", {"scores": "scores", "weights": "softmax"}[of]))
    return net.ends(net.joined(weighed))


def other_axis() -> AttentionNet:
    net = AttentionNet()
    q, k, v = net.projections()
    scores = net.op("MatMul", net.parted(q), net.parted(k, turned=True))
    weighed = net.op("MatMul", net.op("Softmax", scores, name="softmax", axis=2), net.parted(v))
    return net.ends(net.joined(weighed))


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


OTHERS: dict[str, tuple[Callable[[], AttentionNet], int]] = {
    "scores are an output": (lambda: read_twice("scores"), 0),
    "weights are an output": (lambda: read_twice("weights"), 0),
    "softmax over another axis": (other_axis, 0),
    "mask before scaling": (masked_before_scaling, 0),
    # This one is attention: the values merely come from a node that the kernels do not have.
    "values of other tokens": (values_of_other_tokens, 1),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_attention_is_left_alone(name: str) -> None:
    make, count = OTHERS[name]
    program: Any = assert_same_at_batches(make().model(), [1, 2, 3])
    assert len(attentions_of(program)) == count
