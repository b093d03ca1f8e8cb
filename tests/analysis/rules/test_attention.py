"""Attention of the standard and of onnxruntime: heads, their size, their scale, pasts and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nets import MICROSOFT, Net, widen

# Four heads of four features at width 16; sqrt(2), 2 and sqrt(10) times as wide in steps of four.
HEAD_SIZES = [("0.5", 6), ("0.75", 8), ("0.9", 13)]
GROWTHS = {"head-dim": (4, 8), "heads": (8, 4), "keep": (4, 4)}


def projections(net: Net, width: int = 16, kv: int = 16, value: int = 0) -> tuple[str, str, str]:
    """Queries, keys and values ``[1, 5, ...]`` from a residual stream of 12 features."""
    h = net.tokens(12)
    widths = {"q": width, "k": kv, "v": value or kv}
    return tuple(net.dense(h, 12, n, name=name) for name, n in widths.items())  # type: ignore[return-value]


def to_heads(net: Net, x: str, heads: int, size: int, length: int = 5) -> str:
    h = net.op("Reshape", x, net.constant([1, length, heads, size]), name=f"{x}.split")
    return str(net.op("Transpose", h, name=f"{x}.heads", perm=[0, 2, 1, 3]))


def from_heads(net: Net, x: str, width: int) -> str:
    h = net.op("Transpose", x, perm=[0, 2, 1, 3])
    return str(net.op("Reshape", h, net.constant([1, -1, width]), name="joined"))


def attend_4d(net: Net, *rest: str, heads: int = 4, kv_heads: int = 4, outputs: int = 1, **attrs: Any) -> Any:
    """The node ``attention`` over heads of four features."""
    q, k, v = projections(net, 4 * heads, 4 * kv_heads)
    heads_of = {"q": heads, "k": kv_heads, "v": kv_heads}
    split = [to_heads(net, x, heads_of[x], 4) for x in (q, k, v)]
    return net.op("Attention", *split, *rest, name="attention", outputs=outputs, **attrs)


def attend_3d(net: Net, *rest: str, heads: int = 4, kv_heads: int = 4, outputs: int = 1, **attrs: Any) -> Any:
    inputs = projections(net, 4 * heads, 4 * kv_heads)
    counts = {"q_num_heads": heads, "kv_num_heads": kv_heads}
    return net.op("Attention", *inputs, *rest, name="attention", outputs=outputs, **counts, **attrs)


@pytest.fixture
def net() -> Net:
    return Net(23)


@pytest.mark.parametrize(("sparsity", "size"), HEAD_SIZES)
def test_heads_of_a_4d_attention_get_wider(net: Net, sparsity: str, size: int) -> None:
    net.tokens_end(from_heads(net, attend_4d(net), 16), 16)
    wide = widen(net, sparsity)
    assert wide.shape("attention") == (1, 4, 5, size)
    assert wide.shape("q.weight")[1] == wide.shape("after.weight")[0] == 4 * size


@pytest.mark.parametrize(("sparsity", "size"), HEAD_SIZES)
def test_heads_of_a_3d_attention_get_wider(net: Net, sparsity: str, size: int) -> None:
    net.tokens_end(attend_3d(net), 16)
    wide = widen(net, sparsity)
    assert wide.shape("attention") == (1, 5, 4 * size)
    assert wide.attr("attention", "q_num_heads") == wide.attr("attention", "kv_num_heads") == 4


@pytest.mark.parametrize("growth", GROWTHS)
def test_what_grows_in_a_4d_attention_is_a_choice(net: Net, growth: str) -> None:
    net.tokens_end(from_heads(net, attend_4d(net), 16), 16)
    wide = widen(net, attention=growth)
    heads, size = GROWTHS[growth]
    assert wide.shape("attention") == (1, heads, 5, size)
    assert wide.shape("q.weight") == (24, heads * size)


@pytest.mark.parametrize("growth", GROWTHS)
def test_what_grows_in_a_3d_attention_is_a_choice(net: Net, growth: str) -> None:
    net.tokens_end(attend_3d(net), 16)
    wide = widen(net, attention=growth)
    heads, size = GROWTHS[growth]
    assert wide.shape("attention") == (1, 5, heads * size)
    assert wide.attr("attention", "q_num_heads") == wide.attr("attention", "kv_num_heads") == heads


@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("attend", [attend_3d, attend_4d])
def test_heads_that_share_keys_and_values(net: Net, attend: Any, growth: str) -> None:
    h = attend(net, heads=4, kv_heads=2)
    net.tokens_end(h if attend is attend_3d else from_heads(net, h, 16), 16)
    wide = widen(net, attention=growth)
    heads, size = GROWTHS[growth]
    assert wide.shape("q.weight") == (24, heads * size)
    assert wide.shape("k.weight") == wide.shape("v.weight") == (24, heads // 2 * size)
    if attend is attend_3d:
        assert wide.attr("attention", "q_num_heads") == heads
        assert wide.attr("attention", "kv_num_heads") == heads // 2


def test_values_have_a_size_of_their_own(net: Net) -> None:
    q, k, v = projections(net, 16, 16, 8)
    net.tokens_end(net.op("Attention", q, k, v, name="attention", q_num_heads=4, kv_num_heads=4), 8)
    wide = widen(net, "0.5")
    assert wide.shape("q.weight")[1] == 24
    assert wide.shape("attention") == (1, 5, 12)


@pytest.mark.parametrize("growth", ["head-dim", "heads"])
@pytest.mark.parametrize(("value", "exponent"), [(0.5, -0.5), (2.0, 0.5), (4**-0.25, -0.25)])
@pytest.mark.parametrize("attend", [attend_3d, attend_4d])
def test_a_scale_that_is_a_power_of_the_head_follows_it(
    net: Net, attend: Any, growth: str, value: float, exponent: float
) -> None:
    h = attend(net, scale=value)
    net.tokens_end(h if attend is attend_3d else from_heads(net, h, 16), 16)
    wide = widen(net, attention=growth)
    assert wide.attr("attention", "scale") == pytest.approx(GROWTHS[growth][1] ** exponent)
    assert wide.report["warnings"] == []


def test_a_scale_that_is_no_power_of_the_head_stays_and_is_reported(net: Net) -> None:
    net.tokens_end(attend_3d(net, scale=0.37), 16)
    wide = widen(net)
    assert wide.attr("attention", "scale") == pytest.approx(0.37)
    (warning,) = wide.report["warnings"]
    assert "'attention'" in warning


def test_a_factor_in_front_of_an_attention_of_scale_one_follows_the_head(net: Net) -> None:
    q, k, v = projections(net)
    q = net.op("Mul", q, net.constant(0.5), name="scaled")
    h = net.op("Attention", q, k, v, name="attention", q_num_heads=4, kv_num_heads=4, scale=1.0)
    net.tokens_end(h, 16)
    wide = widen(net)
    assert wide.attr("attention", "scale") == 1
    assert wide.read("scaled", 1) == pytest.approx([8**-0.5])
    assert wide.report["warnings"] == []


def past(net: Net, heads: int = 4) -> tuple[str, str]:
    """Keys and values ``[1, heads, 3, 4]`` that the caller keeps."""
    return net.input("past_k", 1, heads, 3, 4), net.input("past_v", 1, heads, 3, 4)


@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("attend", [attend_3d, attend_4d])
def test_pasts_of_the_caller_keep_heads_and_their_size(net: Net, attend: Any, growth: str) -> None:
    h, present_k, present_v = attend(net, "", *past(net), outputs=3)
    net.output(present_k)
    net.output(present_v)
    net.tokens_end(h if attend is attend_3d else from_heads(net, h, 16), 16)
    wide = widen(net, attention=growth)
    assert wide.shape("before") == (1, 5, 24)
    assert wide.shape("q.weight") == (24, 16)
    assert wide.shape(present_k) == (1, 4, 8, 4)
    if growth != "keep":
        assert "past_" in wide.reason("k.weight")


def test_keys_and_values_that_are_outputs_keep_their_sizes(net: Net) -> None:
    h, present_k, present_v = attend_4d(net, outputs=3)
    net.output(present_v)
    net.tokens_end(from_heads(net, h, 16), 16)
    wide = widen(net)
    assert wide.shape(present_k) == (1, 4, 5, 8)
    assert wide.shape(present_v) == (1, 4, 5, 4)
    assert present_v in wide.reason("v.weight")


@pytest.mark.parametrize("growth", GROWTHS)
def test_stored_pasts_follow_the_heads(net: Net, growth: str) -> None:
    stored = net.weight(1, 4, 3, 4, name="past_k"), net.weight(1, 4, 3, 4, name="past_v")
    h = attend_3d(net, "", *stored, outputs=3)[0]
    net.tokens_end(h, 16)
    wide = widen(net, attention=growth)
    heads, size = GROWTHS[growth]
    assert wide.shape("past_k") == wide.shape("past_v") == (1, heads, 3, size)


@pytest.mark.parametrize("shape", [(5, 5), (1, 1, 5, 5), (1, 4, 5, 5)])
@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("attend", [attend_3d, attend_4d])
def test_a_stored_mask_or_bias_of_the_scores(net: Net, attend: Any, growth: str, shape: tuple[int, ...]) -> None:
    mask = net.constant(np.random.default_rng(0).standard_normal(shape), "mask")
    h = attend(net, mask)
    net.tokens_end(h if attend is attend_3d else from_heads(net, h, 16), 16)
    wide = widen(net, attention=growth)
    heads, _ = GROWTHS[growth]
    assert wide.shape("mask") == (shape if len(shape) < 4 or shape[1] == 1 else (1, heads, 5, 5))


def test_products_of_attention_are_counted_apart(net: Net) -> None:
    net.tokens_end(attend_3d(net), 16)
    totals = widen(net).report["totals"]
    assert totals["attention_macs_before"] == 2 * 4 * 5 * 5 * 4
    assert totals["attention_macs_after"] == 2 * 4 * 5 * 5 * 8


def test_positions_of_the_past_are_counted_too(net: Net) -> None:
    h = attend_3d(net, "", *past(net), outputs=3)[0]
    net.tokens_end(h, 16)
    assert widen(net).report["totals"]["attention_macs_before"] == 2 * 4 * 5 * 8 * 4


def scores(net: Net, outputs: int = 4, **attrs: Any) -> tuple[str, str]:
    q, k, v = projections(net)
    h = net.op("Attention", q, k, v, name="attention", outputs=outputs, q_num_heads=4, kv_num_heads=4, **attrs)
    return h[0], h[3]


@pytest.mark.parametrize("growth", GROWTHS)
def test_scores_that_are_read_have_an_axis_of_heads(net: Net, growth: str) -> None:
    h, qk = scores(net)
    mean = net.op("Unsqueeze", net.op("ReduceMean", qk, net.constant([0, 1, 2, 3]), keepdims=0), net.constant([0]))
    net.tokens_end(net.op("Add", h, mean), 16)
    wide = widen(net, attention=growth)
    assert wide.shape("attention.3") == (1, GROWTHS[growth][0], 5, 5)


# Attention as exporters spell it in primitives.


def spelled_out(net: Net, scale: str = "scores", heads: int = 4) -> Net:
    q, k, v = (to_heads(net, x, heads, 4) for x in projections(net))
    k = net.op("Transpose", k, perm=[0, 1, 3, 2])
    qk = net.op("MatMul", q, k, name="qk")
    qk = net.op("Div", qk, net.constant(2.0), name="scaled")
    h = net.op("MatMul", net.op("Softmax", qk), v, name="attention")
    net.tokens_end(from_heads(net, h, 16), 16)
    return net


@pytest.mark.parametrize("growth", GROWTHS)
def test_what_grows_in_an_attention_of_primitives_is_a_choice(net: Net, growth: str) -> None:
    wide = widen(spelled_out(net), attention=growth)
    heads, size = GROWTHS[growth]
    assert wide.shape("attention") == (1, heads, 5, size)
    assert wide.shape("q.weight") == (24, heads * size)
    assert wide.read("scaled", 1) == pytest.approx([size**0.5])
    assert wide.read("q.split", 1) == [1, 5, heads, size]


@pytest.mark.parametrize("growth", GROWTHS)
def test_repeated_keys_and_values_of_primitives(net: Net, growth: str) -> None:
    """Llama: keys of two heads are expanded to four by Unsqueeze, Expand, Reshape."""
    q, k, v = projections(net, 16, 8)
    q = to_heads(net, q, 4, 4)
    repeated = []
    for x in (k, v):
        h = net.op("Unsqueeze", to_heads(net, x, 2, 4), net.constant([2]))
        h = net.op("Expand", h, net.constant([1, 2, 2, 5, 4]), name=f"{x}.expanded")
        repeated.append(net.op("Reshape", h, net.constant([1, 4, 5, 4]), name=f"{x}.repeated"))
    qk = net.op("MatMul", q, net.op("Transpose", repeated[0], perm=[0, 1, 3, 2]), name="qk")
    qk = net.op("Mul", qk, net.constant(0.5), name="scaled")
    h = net.op("MatMul", net.op("Softmax", qk), repeated[1], name="attention")
    net.tokens_end(from_heads(net, h, 16), 16)
    wide = widen(net, attention=growth)
    heads, size = GROWTHS[growth]
    assert wide.shape("attention") == (1, heads, 5, size)
    assert wide.shape("k.weight") == (24, heads // 2 * size)
    assert wide.read("scaled", 1) == pytest.approx([size**-0.5])


def test_a_fused_projection_of_queries_keys_and_values(net: Net) -> None:
    h = net.dense(net.tokens(12), 12, 48, name="qkv")
    parts = net.op("Split", h, name="part", outputs=3, axis=-1, num_outputs=3)
    q, k, v = (to_heads(net, x, 4, 4) for x in parts)
    qk = net.op("MatMul", net.op("Mul", q, net.constant(0.5), name="scaled"), net.op("Transpose", k, perm=[0, 1, 3, 2]))
    h = net.op("MatMul", net.op("Softmax", qk), v, name="attention")
    net.tokens_end(from_heads(net, h, 16), 16)
    wide = widen(net, "0.9")
    assert wide.shape("qkv.weight")[1] == 3 * 52
    assert wide.shape("attention") == (1, 4, 5, 13)
    assert wide.read("scaled", 1) == pytest.approx([13**-0.5])


# onnxruntime's own operators.


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
