"""Attention of the standard, and spelled out in primitives: heads, their size, their scale, pasts and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_inputs import GROWTHS, from_heads, projections, to_heads
from nets import Net, widen

# Four heads of four features at width 16; sqrt(2), 2 and sqrt(10) times as wide in steps of four.
HEAD_SIZES = [("0.5", 6), ("0.75", 8), ("0.9", 13)]


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
