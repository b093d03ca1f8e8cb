"""Attention of the com.microsoft domain: what onnxruntime's optimizer and its builder of language models write."""

from __future__ import annotations

from sift_onnx.analysis.axes.sizes import Axis, Size, size_of
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule
from sift_onnx.analysis.rules.attention import (
    bias_of_scores,
    merged,
    packed_heads,
    past_and_present,
    register_products,
)
from sift_onnx.analysis.rules.stored_tables import recompute_table
from sift_onnx.operators.domains import MICROSOFT

_NOT_COVERED = "this layout of attention is not covered"


@axis_rule("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(ctx: RuleContext) -> None:
    """``query [B, T, heads * d]``, ``key``, ``value``, and one bias for all three; packed forms keep their sizes."""
    q, k, v = (ctx.axes(i) for i in range(3))
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 3 or ctx.has_input(8):
        ctx.keep_sizes(_NOT_COVERED)
        return
    heads = packed_heads(ctx, q[2], k[2], v[2], ("num_heads", "num_heads"))
    bias = ctx.axes(3)
    if bias is not None:
        ctx.equate(bias[0], q[2].size + k[2].size + v[2].size, "bias of queries, keys and values")
    ctx.pin_all(ctx.axes(4), "positions of attention")
    bias_of_scores(ctx, 5, heads)
    total = past_and_present(ctx, (6, 7), (1, 2), q[0], k[1], heads)
    register_products(ctx, q[0].size, q[1].size, total, heads)
    ctx.set_axes(0, (q[0], q[1], merged(ctx, v[2], heads)))
    ctx.set_axes(3, (q[0], Axis(heads.queries), q[1], Axis(total)))


@axis_rule("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(ctx: RuleContext) -> None:
    """``query [B, T, heads * d]``, ``key`` and ``value [B, T, kv_heads * d]``, pasts ``[B, kv_heads, P, d]``."""
    q, k, v = (ctx.axes(i) for i in range(3))
    if q is None or k is None or v is None:
        ctx.keep_sizes(_NOT_COVERED)
        return
    heads = packed_heads(ctx, q[2], k[2], v[2], ("num_heads", "kv_num_heads"))
    ctx.equate(heads.size, heads.value_size, "keys and values are alike")
    if ctx.attr("do_rotary", 0):
        half = heads.size / 2
        # onnxruntime rotates whole vectors only.
        ctx.system.require_integer(heads.size / 16 if ctx.original(heads.size) % 16 == 0 else half)
        for position in (7, 8):
            table = ctx.axes(position)
            if table is not None:
                ctx.equate(table[-1], half, "rotary table")
                recompute_table(ctx, position, table[-1])
    columns = _positions(ctx, k[1])
    if columns is None and any(t.name for t in ctx.node.outputs[1:]):
        for size in (heads.keys, heads.size):
            ctx.pin(size, "keys and values are handed out for a computed number of positions")
    total = past_and_present(ctx, (3, 4), (1, 2), q[0], k[1], heads, k[1].size if columns is None else columns)
    if columns is None:
        for i in (1, 2):
            ctx.set_axes(i, None)
    register_products(ctx, q[0].size, q[1].size, total, heads)
    ctx.set_axes(0, (q[0], q[1], merged(ctx, v[2], heads)))


def _positions(ctx: RuleContext, length: Axis) -> Size | None:
    """How many positions a GroupQueryAttention hands out: those of the past's buffer, or all that there are."""
    total, past = ctx.elements(6), ctx.axes(3)
    if total is not None:
        stated = total.reshape(-1)[0].value
    elif past is None:
        stated = ctx.original(length)
    else:
        return None
    return size_of(max(stated, ctx.original(past[2]) if past is not None else 0))


@axis_rule("Attention", domain=MICROSOFT)
def attention(ctx: RuleContext) -> None:
    """``x [B, T, I]`` times a weight ``[I, 3 * heads * d]`` that holds all three projections, plus a bias."""
    x, w = ctx.axes(0), ctx.axes(1)
    parts = ctx.attr("qkv_hidden_sizes")
    uneven = parts is not None and len(set(parts)) > 1
    if x is None or w is None or uneven or ctx.has_input(6) or ctx.attr("do_rotary", 0):
        ctx.keep_sizes(_NOT_COVERED)
        return
    ctx.equate(w[0], x[2], "input features")
    part = w[1].size / 3
    ctx.system.require_integer(part)
    if parts is not None:
        ctx.set_attribute("qkv_hidden_sizes", [part] * 3)
    one = Axis(part, 1, ctx.original(part))
    heads = packed_heads(ctx, one, one, one, ("num_heads", "num_heads"))
    bias = ctx.axes(2)
    if bias is not None:
        ctx.equate(bias[0], w[1], "bias of queries, keys and values")
    ctx.pin_all(ctx.axes(3), "positions of attention")
    bias_of_scores(ctx, 5, heads)
    past = ctx.axes(4)
    total = x[1].size
    if past is not None:
        for axis, size in zip(past[1:], (x[0].size, heads.keys, past[3].size, heads.size), strict=True):
            ctx.equate(axis, size, "past keys and values")
        ctx.pin(past[3], "positions of the past")
        total = total + past[3].size
    ctx.set_axes(1, (Axis(size_of(2)), x[0], Axis(heads.keys), Axis(total), Axis(heads.size)))
    register_products(ctx, x[0].size, x[1].size, total, heads)
    ctx.set_axes(0, (x[0], x[1], merged(ctx, one, heads)))
    parameter = ctx.parameter(1)
    if parameter is None:
        ctx.pin_all(w, "the weight is computed, not stored")
    else:
        ctx.weight(parameter, "matmul", 1, (x[0].size, x[1].size))
