"""Attention and fused operators of onnxruntime: heads, their size, and what the operators hand out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_inputs import GROWTHS, projections
from nets import MICROSOFT, Net, widen


@pytest.fixture
def net() -> Net:
    return Net(23)


def contrib(net: Net, kind: str, *inputs: str, outputs: int = 1, **attrs: Any) -> Any:
    return net.op(kind, *inputs, name="attention", domain=MICROSOFT, outputs=outputs, **attrs)


@pytest.mark.parametrize("growth", GROWTHS)
def test_the_multi_head_attention_of_onnxruntime(net: Net, growth: str) -> None:
    bias = net.constant(np.random.default_rng(0).standard_normal(48), "bias")
    net.tokens_end(contrib(net, "MultiHeadAttention", *projections(net), bias, num_heads=4, scale=0.5), 16)
    wide = widen(net, attention=growth)
    heads, size = GROWTHS[growth]
    assert wide.shape("attention") == (1, 5, heads * size)
    assert wide.shape("bias") == (3 * heads * size,)
    assert wide.attr("attention", "num_heads") == heads
    assert wide.attr("attention", "scale") == pytest.approx(size**-0.5)
    assert wide.report["totals"]["attention_macs_after"] == 2 * heads * 25 * size


def test_keys_and_values_that_multi_head_attention_hands_out_keep_their_sizes(net: Net) -> None:
    h = contrib(net, "MultiHeadAttention", *projections(net), outputs=3, num_heads=4)
    net.output(h[1], 1, 4, 5, 4)
    net.output(h[2], 1, 4, 5, 4)
    net.tokens_end(h[0], 16)
    wide = widen(net)
    assert wide.shape("before") == (1, 5, 24)
    assert wide.shape(h[1]) == (1, 4, 5, 4)
    assert "output" in wide.reason("k.weight")


def grouped(net: Net, size: int = 8, *, stateful: bool, outputs: int = 3, **attrs: Any) -> Any:
    """GroupQueryAttention of four heads that share two heads of keys."""
    q, k, v = projections(net, 4 * size, 2 * size)
    pasts = ("", "")
    if stateful:
        pasts = net.input("past_k", 1, 2, 3, size), net.input("past_v", 1, 2, 3, size)
    total = 8 if stateful else 5
    lengths = net.constant(np.array([total - 1], np.int32)), net.constant(np.array(total, np.int32))
    rest = attrs.pop("tables", ())
    return contrib(
        net,
        "GroupQueryAttention",
        q,
        k,
        v,
        *pasts,
        *lengths,
        *rest,
        outputs=outputs,
        num_heads=4,
        kv_num_heads=2,
        **attrs,
    )


@pytest.mark.parametrize(("growth", "heads", "size"), [("head-dim", 4, 16), ("heads", 8, 8), ("keep", 4, 8)])
def test_the_group_query_attention_of_onnxruntime(net: Net, growth: str, heads: int, size: int) -> None:
    net.tokens_end(grouped(net, stateful=False, scale=8**-0.5)[0], 32)
    wide = widen(net, attention=growth)
    assert wide.shape("attention") == (1, 5, heads * size)
    assert wide.shape("k.weight") == (24, heads // 2 * size)
    assert wide.attr("attention", "num_heads") == heads
    assert wide.attr("attention", "kv_num_heads") == heads // 2
    assert wide.attr("attention", "scale") == pytest.approx(size**-0.5)
    assert wide.shape("attention.1") == (1, heads // 2, 5, size)


@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("stateful", [True, False])
def test_keys_and_values_that_group_query_attention_hands_out_keep_their_sizes(
    net: Net, stateful: bool, growth: str
) -> None:
    h, *presents = grouped(net, stateful=stateful)
    for present in presents:
        net.output(present, 1, 2, 8 if stateful else 5, 8)
    net.tokens_end(h, 32)
    wide = widen(net, attention=growth)
    assert wide.shape("before") == (1, 5, 24)
    assert wide.shape(presents[0]) == (1, 2, 8 if stateful else 5, 8)


@pytest.mark.parametrize(("sparsity", "size"), [("0.5", 16), ("0.75", 32), ("0.9", 48)])
def test_tables_that_group_query_attention_rotates_by(net: Net, sparsity: str, size: int) -> None:
    """onnxruntime rotates heads of multiples of 16 only."""

    def angles(head: int) -> Any:
        return np.arange(16)[:, None] * 10000.0 ** (-np.arange(head // 2) / (head // 2))

    tables = net.constant(np.cos(angles(16)), "cos"), net.constant(np.sin(angles(16)), "sin")
    net.tokens_end(grouped(net, 16, stateful=False, tables=tables, do_rotary=1)[0], 64)
    wide = widen(net, sparsity)
    assert wide.shape("attention") == (1, 5, 4 * size)
    np.testing.assert_allclose(wide.initializers["cos"], np.cos(angles(size)), atol=1e-6)
    np.testing.assert_allclose(wide.initializers["sin"], np.sin(angles(size)), atol=1e-6)


@pytest.mark.parametrize("kind", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("bias", [False, True])
def test_the_skip_norm_of_onnxruntime(net: Net, kind: str, bias: bool) -> None:
    h = net.tokens(8)
    skip = net.dense(net.op("Relu", h), 8, 8, name="branch")
    parameters = [net.constant(np.ones(8), "gamma")]
    if kind == "SkipLayerNormalization":
        parameters.append(net.constant(np.zeros(8), "beta"))
    if bias:
        parameters.append(net.constant(np.random.default_rng(0).standard_normal(8), "bias"))
    h = net.op(kind, h, skip, *parameters, name="norm", domain=MICROSOFT, outputs=4)
    net.tokens_end(net.op("Add", h[0], h[3]), 8)
    wide = widen(net, "0.9")
    assert [wide.shape(name) for name in parameters] == [(25,)] * len(parameters)
    assert wide.shape("norm.3") == (1, 5, 25)


@pytest.mark.parametrize("kind", ["BiasGelu", "FastGelu"])
def test_the_gelu_with_a_bias_of_onnxruntime(net: Net, kind: str) -> None:
    bias = net.constant(np.random.default_rng(0).standard_normal(8), "bias")
    net.tokens_end(net.op(kind, net.tokens(8), bias, name="gelu", domain=MICROSOFT), 8)
    wide = widen(net)
    assert wide.shape("bias") == (16,)
    assert wide.shape("gelu") == (1, 5, 16)


@pytest.mark.parametrize("kind", ["Gelu", "QuickGelu"])
def test_the_gelu_without_a_bias_of_onnxruntime(net: Net, kind: str) -> None:
    net.tokens_end(net.op(kind, net.tokens(8), name="gelu", domain=MICROSOFT), 8)
    assert widen(net).shape("gelu") == (1, 5, 16)


@pytest.mark.parametrize("growth", GROWTHS)
def test_the_attention_of_onnxruntime_that_holds_its_projections(net: Net, growth: str) -> None:
    """What the transformer optimizer makes of BERT."""
    weight, bias = net.weight(12, 48, name="w"), net.weight(48, name="bias", fan_in=1)
    net.tokens_end(contrib(net, "Attention", net.tokens(12), weight, bias, num_heads=4), 16)
    wide = widen(net, attention=growth)
    heads, size = GROWTHS[growth]
    assert wide.shape("w") == (24, 3 * heads * size)
    assert wide.shape("bias") == (3 * heads * size,)
    assert wide.shape("attention") == (1, 5, heads * size)
    assert wide.attr("attention", "num_heads") == heads
    assert wide.status("w") == "sparse" if growth != "keep" else wide.shape("w") == (24, 48)
    totals = wide.report["totals"]
    assert totals["attention_macs_after"] == 2 * heads * 25 * size


def test_embeddings_and_their_norm_in_one_operator_of_onnxruntime(net: Net) -> None:
    ids = net.input("ids", values=np.array([[3, 1, 4, 1, 5]], np.int32))
    tables = [net.weight(n, 8, name=name, fan_in=8) for name, n in (("words", 11), ("places", 7), ("segments", 2))]
    segments = net.input("segment_ids", values=np.array([[0, 0, 1, 1, 1]], np.int32))
    norm = net.constant(np.ones(8), "gamma"), net.constant(np.zeros(8), "beta")
    inputs = ids, segments, *tables, *norm
    h = net.op("EmbedLayerNormalization", *inputs, name="embedded", domain=MICROSOFT, outputs=2)[0]
    net.output(net.dense(net.op("Relu", net.dense(net.dense(h, 8, 12, name="up"), 12, 8, name="down")), 8, 2))
    wide = widen(net)
    assert [wide.shape(name) for name in tables] == [(11, 16), (7, 16), (2, 16)]
    assert wide.shape("gamma") == (16,)
    assert wide.shape("embedded") == (1, 5, 16)
    assert wide.status("words") == "dense"
