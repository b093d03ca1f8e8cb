"""Attention of a decoder's tokens to an encoder's: other numbers of queries than of keys, in one kernel."""

from __future__ import annotations

import numpy as np
import pytest
from attention_nets import BATCH, DEPTH, HEADS, WIDTH, AttentionNet, attentions_of
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, places

from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram

pytestmark = pytest.mark.usefixtures("every_region_pays")

ENCODED = 13


class CrossNet(AttentionNet):
    """Its inputs are what a test gives it."""

    def __init__(self) -> None:
        SparseNet.__init__(self, 17)


def crossed(tokens: int | str, keys: int | str, mask: str = "") -> CrossNet:
    """Queries of ``x``, keys and values of ``states``; names are lengths that only a run knows."""
    net = CrossNet()
    x = net.input("decoded", BATCH, 5, 5, declared=["n", tokens, 5])
    states = net.input("states", BATCH, ENCODED, 6, declared=["n", keys, 6])
    heads = net.constant([0, 0, HEADS, DEPTH], dtype=np.int64)
    q = net.op("Mul", net.op("Relu", net.dense(x, 5, WIDTH)), net.constant(0.5))
    k, v = (net.dense(states, 6, WIDTH) for _ in range(2))
    q, k, v = (
        net.op("Transpose", net.op("Reshape", value, heads), perm=perm)
        for value, perm in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3]))
    )
    if mask == "by key":
        mask = net.input("mask", BATCH, 1, 1, ENCODED, declared=["n", 1, 1, keys])
    elif mask:
        mask = net.input("mask", HEADS, 5, ENCODED, declared=[HEADS, tokens, keys])
    return net.ends(net.joined(net.attend(q, k, v, mask)))


def feeds_of(net: CrossNet, batch: int, tokens: int, keys: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(tokens)
    shapes = {"decoded": (batch, tokens, 5), "states": (batch, keys, 6)}
    if "mask" in net.feeds:
        shapes["mask"] = (batch, 1, 1, keys) if net.feeds["mask"].ndim == 4 else (HEADS, tokens, keys)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("mask", ["", "by key", "by query"])
@pytest.mark.parametrize("tokens", [5, "tokens"])
@pytest.mark.parametrize("keys", [ENCODED, "encoded"])
def test_queries_of_a_decoder_attend_to_an_encoder(tokens: int | str, keys: int | str, mask: str) -> None:
    net = crossed(tokens, keys, mask)
    program = CpuProgram(net.model(), ONE_THREAD)
    assert len(attentions_of(program)) == 1
    assert sum(isinstance(part, RegionProgram) for part in program.parts) == len(program.parts) == 1
    for batch, own, others in ((1, 5, ENCODED), (3, 5, ENCODED), (2, 20, 3), (1, 1, 40), (1, 40, 1)):
        if (tokens == 5 and own != 5) or (keys == ENCODED and others != ENCODED):
            continue
        assert_same_as_onnxruntime(net.model(), feeds_of(net, batch, own, others), program)


def test_without_keys_nothing_is_added_up() -> None:
    net = crossed("tokens", "encoded")
    assert_same_as_onnxruntime(net.model(), feeds_of(net, 1, 4, 0))


def test_a_past_that_is_no_cache_of_the_kernels_stays_in_onnxruntime() -> None:
    """Keys that are concatenated at every run would all be moved at every run."""
    net = CrossNet()
    past = net.input("past", BATCH, 4, 5, declared=["n", "past", 5])
    new = net.input("new", BATCH, 3, 5, declared=["n", "tokens", 5])
    heads = net.constant([0, 0, HEADS, DEPTH], dtype=np.int64)
    both = net.op("Concat", past, new, axis=1)
    q, k, v = (net.dense(value, 5, WIDTH) for value in (new, both, both))
    q, k, v = (
        net.op("Transpose", net.op("Reshape", value, heads), perm=perm)
        for value, perm in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3]))
    )
    program = assert_same_as_onnxruntime(net.ends(net.joined(net.attend(q, k, v))).model(), net.feeds)
    assert not attentions_of(program)
    assert places(program)["softmax"] == "onnxruntime"
