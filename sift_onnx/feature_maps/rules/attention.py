"""Attention, in both domains, and rotary embeddings: heads get wider, or there are more of them.

Scores are sums over the features of a head. What is added to keys is zero, so that they stay what they were, and the
factor of the scores stays the one of the old size.
"""

from __future__ import annotations

from collections.abc import Sequence

from sift_onnx.feature_maps.context import FeatureMapContext
from sift_onnx.feature_maps.findings import Extent
from sift_onnx.feature_maps.registry import feature_map_rule
from sift_onnx.operators.domains import MICROSOFT

_SUMS = "sums products of activations over"


@feature_map_rule("Attention")
def attention(ctx: FeatureMapContext) -> None:
    """``q, k, v`` as ``[B, heads, T, d]`` or ``[B, T, heads * d]``, a mask, past keys and values."""
    q, k, v, out = ctx.input(0), ctx.input(1), ctx.input(2), ctx.output()
    _positions(ctx, q, k, v)
    if len(q) == 4:
        size, heads, kv_heads = k[3], q[1], k[1]
        ctx.same(q[3], size)
        ctx.merged(heads, kv_heads, inner=heads.old // kv_heads.old)
        ctx.same(v[1], kv_heads)
        ctx.same_axes((q[0], q[1], q[2], v[3]), out)
    else:
        size, heads, kv_heads = _packed(ctx, q[2], k[2], v[2], out[2], ("q_num_heads", "kv_num_heads"))
    _scores(ctx, (1, 0), size, heads, ctx.input(3))
    _cached(ctx, (4, 5), (1, 2), kv_heads, size)
    if any(axis.grows for axis in ctx.output(3)):
        ctx.same(ctx.output(3)[1], heads)


@feature_map_rule("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(ctx: FeatureMapContext) -> None:
    """``query``, ``key``, ``value [B, T, heads * d]``, and one bias for all three."""
    q, k, v = ctx.input(0), ctx.input(1), ctx.input(2)
    _positions(ctx, q, k, v)
    size, heads, kv_heads = _packed(ctx, q[2], k[2], v[2], ctx.output()[2], ("num_heads", "num_heads"))
    bias = ctx.input(3)
    if bias:
        ctx.joined(bias[0], [q[2], k[2], v[2]])
        if size.grows:
            ctx.require_zero((3,), k[2:], _SUMS, (q[2].new, q[2].new + k[2].new))
    # Keys first: they need no bias besides that of the node.
    _scores(ctx, (1,) if bias else (1, 0), size, heads, ctx.input(5))
    _cached(ctx, (6, 7), (1, 2), kv_heads, size)


@feature_map_rule("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(ctx: FeatureMapContext) -> None:
    """``query [B, T, heads * d]``, ``key`` and ``value [B, T, kv_heads * d]``, tables of a rotary embedding."""
    q, k, v = ctx.input(0), ctx.input(1), ctx.input(2)
    _positions(ctx, q, k, v)
    size, heads, kv_heads = _packed(ctx, q[2], k[2], v[2], ctx.output()[2], ("num_heads", "kv_num_heads"))
    _scores(ctx, (1, 0), size, heads, ())
    if ctx.attr("do_rotary", 0) and size.grows:
        _rotated(ctx, size, ctx.input(7), bool(ctx.attr("rotary_interleaved", 0)))
        ctx.same(ctx.input(7)[-1], ctx.input(8)[-1])
    _cached(ctx, (3, 4), (1, 2), kv_heads, size)


@feature_map_rule("Attention", domain=MICROSOFT)
def projecting_attention(ctx: FeatureMapContext) -> None:
    """``x [B, T, I]`` times a weight ``[I, 3 * heads * d]`` of all three projections, plus a bias."""
    x, w, out = ctx.input(0), ctx.input(1), ctx.output()
    _positions(ctx, x)
    ctx.same(x[2], w[0])
    part = ctx.free(w[1].old // 3, w[1].new // 3)
    ctx.joined(w[1], [part] * 3)
    size, heads, _ = _packed(ctx, part, part, part, out[2], ("num_heads", "num_heads"))
    if ctx.has_input(2):
        ctx.same(ctx.input(2)[0], w[1])
        if size.grows:
            ctx.require_zero((2,), w[1:], _SUMS, (part.new, 2 * part.new))
    if ctx.has_input(4) or (len(ctx.node.outputs) > 1 and ctx.node.outputs[1].name):
        ctx.require_fixed(w[1:], "hands keys and values of its heads on, which lie along")
    _keep_scale(ctx, size)
    _of_heads(ctx, ctx.input(5), heads)


def _positions(ctx: FeatureMapContext, *operands: Sequence[Extent]) -> None:
    """Scores of all positions share a softmax, so that there are no more of them."""
    ctx.require_fixed([axes[-2] for axes in operands if axes], "attends to positions along")


def _packed(
    ctx: FeatureMapContext, q: Extent, k: Extent, v: Extent, out: Extent, attributes: tuple[str, str]
) -> tuple[Extent, Extent, Extent]:
    """The size of a head, the heads of queries, and those of keys, where both lie in one axis."""
    number, kv_number = (int(ctx.attr(name)) for name in attributes)
    shared = number // kv_number
    if ctx.attention == "heads":
        size, value_size = q.old // number, v.old // kv_number
        kv_heads = ctx.free(kv_number, k.new // size)
        heads = ctx.free(number, q.new // size)
        ctx.merged(heads, kv_heads, inner=shared)
        for axis, part, width in ((q, heads, size), (k, kv_heads, size), (v, kv_heads, value_size)):
            ctx.merged(axis, part, inner=width)
        ctx.merged(out, heads, inner=value_size)
        return ctx.free(size, size), heads, kv_heads
    size_axis = ctx.free(q.old // number, q.new // number)
    value_axis = ctx.free(v.old // kv_number, v.new // kv_number)
    ctx.merged(q, size_axis, outer=number)
    ctx.merged(k, size_axis, outer=kv_number)
    ctx.merged(v, value_axis, outer=kv_number)
    ctx.merged(out, value_axis, outer=number)
    return size_axis, ctx.free(number, number), ctx.free(kv_number, kv_number)


def _scores(ctx: FeatureMapContext, zero: Sequence[int], size: Extent, heads: Extent, mask: Sequence[Extent]) -> None:
    if size.grows:
        ctx.require_zero(zero, [axis for i in (0, 1) for axis in ctx.input(i) if axis.grows], _SUMS)
    _keep_scale(ctx, size)
    _of_heads(ctx, mask, heads)


def _keep_scale(ctx: FeatureMapContext, size: Extent) -> None:
    if size.grows and not ctx.attr("scale"):
        ctx.set_attribute("scale", size.old**-0.5)


def _of_heads(ctx: FeatureMapContext, mask: Sequence[Extent], heads: Extent) -> None:
    """A mask or bias ``[..., heads, rows, columns]``."""
    if len(mask) > 2 and mask[-3].old != 1:
        ctx.same(mask[-3], heads)


def _cached(
    ctx: FeatureMapContext, inputs: tuple[int, int], outputs: tuple[int, int], heads: Extent, size: Extent
) -> None:
    """Keys and values ``[B, heads, T, d]`` that are read and handed out."""
    for axes in (*(ctx.input(i) for i in inputs), *(ctx.output(i) for i in outputs)):
        if any(axis.grows for axis in axes):
            ctx.refuse("reads or hands out keys and values of heads that grow", [*axes, size, heads])


@feature_map_rule("RotaryEmbedding")
def rotary_embedding(ctx: FeatureMapContext) -> None:
    """``x [B, heads, T, d]`` or ``[B, T, heads * d]`` with tables of cosines and sines ``[..., d / 2]``."""
    _rotary(ctx, (1, 2))


@feature_map_rule("RotaryEmbedding", domain=MICROSOFT)
def microsoft_rotary_embedding(ctx: FeatureMapContext) -> None:
    """The same with positions as second input and the tables after it."""
    _rotary(ctx, (2, 3))


def _rotary(ctx: FeatureMapContext, tables: tuple[int, int]) -> None:
    x, cosines, sines = ctx.input(0), ctx.input(tables[0]), ctx.input(tables[1])
    ctx.same_axes(x, ctx.output())
    if len(x) == 4:
        size = x[3]
    else:
        number = int(ctx.attr("num_heads", 0))
        if ctx.attention == "heads":
            ctx.merged(x[2], ctx.free(number, x[2].new * number // x[2].old), inner=x[2].old // number)
            return
        size = ctx.free(x[2].old // number, x[2].new // number)
        ctx.merged(x[2], size, outer=number)
    if size.grows:
        _rotated(ctx, size, cosines, bool(ctx.attr("interleaved", 0)))
        ctx.same(cosines[-1], sines[-1])


def _rotated(ctx: FeatureMapContext, size: Extent, table: Sequence[Extent], interleaved: bool) -> None:
    """Pairs of features are rotated: neighbours, or a feature of the first half and one of the second."""
    if interleaved:
        ctx.merged(size, table[-1], inner=2)
    else:
        ctx.joined(size, [table[-1]] * 2)
