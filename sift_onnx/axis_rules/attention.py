"""Attention and RotaryEmbedding of opset 23 and later, and the same of the com.microsoft domain.

Heads stay as many as they are and their size grows, unless the analysis is told otherwise. Queries and keys share a
head size, values have their own.
"""

from __future__ import annotations

from fractions import Fraction

from sift_onnx.axes import Axis, Size, size_of
from sift_onnx.axis_rules.context import Axes, RuleContext, ScaleEdit
from sift_onnx.axis_rules.elementwise import broadcast
from sift_onnx.axis_rules.registry import axis_rule
from sift_onnx.axis_rules.rotary import recognise_rotary
from sift_onnx.constants import array_of

MICROSOFT = "com.microsoft"


@axis_rule("Attention")
def attention(ctx: RuleContext) -> None:
    """``q, k, v`` as ``[B, heads, T, d]`` or ``[B, T, heads * d]``; keys and values may have fewer heads."""
    q, k, v = (ctx.axes(i) for i in range(3))
    if q is None or k is None or v is None:
        _fix(ctx, range(6), "attention over a tensor of unknown shape")
        return
    if len(q) == 4:
        ctx.equate(k[1], v[1], "heads of keys and values")
        ctx.equate(q[1], k[1].size * (ctx.original(q[1]) // ctx.original(k[1])), "heads share keys and values")
        heads, head, value_head = q[1].size, q[3].size, v[3].size
        ctx.equate(q[3], k[3], "queries meet keys")
        out: Axes = (*q[:3], v[3])
    else:
        attributes = ("q_num_heads", "kv_num_heads")
        heads, head, value_head = _packed_heads(ctx, q[2], k[2], v[2], attributes)
        width = v[2].size * (ctx.attr("q_num_heads") // ctx.attr("kv_num_heads"))
        out = (q[0], q[1], _packed_axis(ctx, width, value_head))
    _mask_and_past(ctx, head, value_head)
    _register(ctx, q[0].size, heads, q[-2].size, k[-2].size, head, value_head)
    ctx.set_axes(0, out)
    total = ctx.output_shape(1)
    for i, size in ((1, head), (2, value_head)):
        shape = ctx.output_shape(i) if i < len(ctx.node.outputs) else None
        if shape is not None and total is not None and all(n is not None for n in shape[:3]):
            sequence = ctx.const_axes([n for n in shape[:3] if n is not None])
            ctx.set_axes(i, (*sequence, Axis(size, 1, ctx.original(size))))
    if len(ctx.node.outputs) > 3:
        ctx.set_axes(3, ctx.inferred_axes(3))
    if "scale" in ctx.node.attrs:
        _scale_attribute(ctx, "scale", head)


def _packed_heads(ctx: RuleContext, q: Axis, k: Axis, v: Axis, attributes: tuple[str, str]) -> tuple[Size, Size, Size]:
    """Heads, their size, and that of values, where both lie in one axis and the number of heads is an attribute."""
    heads, kv_heads = (int(ctx.attr(name)) for name in attributes)
    growth = ctx.analysis.attention
    if growth == "keep":
        ctx.pin_all((q, k, v), "attention keeps its heads and their size (--attention keep)")
    if growth == "heads":
        head, value_head = ctx.original(q) // heads, ctx.original(v) // kv_heads
        ctx.equate(q, k.size * (heads // kv_heads), "heads share keys and values")
        ctx.equate(k.size / head, v.size / value_head, "heads of keys and values")
        for name, size in zip(attributes, (q.size / head, k.size / head), strict=True):
            ctx.system.require_integer(size)
            ctx.set_attribute(name, size)
        return q.size / head, size_of(head), size_of(value_head)
    sizes = (q.size / heads, k.size / kv_heads, v.size / kv_heads)
    for size in sizes:
        ctx.system.require_integer(size)
    ctx.equate(sizes[0], sizes[1], "queries meet keys")
    return size_of(heads), sizes[0], sizes[2]


def _packed_axis(ctx: RuleContext, width: Size, value_head: Size) -> Axis:
    span = ctx.original(value_head)
    if ctx.analysis.attention == "heads":
        return Axis(width, span, ctx.original(width) // span)
    return Axis(width, 1, span)


def _mask_and_past(ctx: RuleContext, head: Size, value_head: Size) -> None:
    ctx.pin_all(ctx.axes(3), "it masks attention")
    for position, size in ((4, head), (5, value_head)):
        past = ctx.axes(position)
        if past is not None:
            ctx.equate(past[-1], size, "past keys and values")


def _register(ctx: RuleContext, batch: Size, heads: Size, rows: Size, columns: Size, head: Size, value: Size) -> None:
    for size in (head, value):
        ctx.product(batch, heads, rows, columns, size)


def _scale_attribute(ctx: RuleContext, name: str, head: Size) -> None:
    exponent = scale_exponent(float(ctx.attr(name)), ctx.original(head))
    if exponent is not None:
        ctx.analysis.scale_edits.append(ScaleEdit(ctx.index, name, exponent, head))


def scale_exponent(value: float, head: int) -> Fraction | None:
    """The power of the head size that ``value`` is: -1/2, -1/4, 1/2 or 1/4; None if it is none of these."""
    if head < 2:
        return None
    for exponent in (Fraction(-1, 2), Fraction(-1, 4), Fraction(1, 2), Fraction(1, 4)):
        if abs(value - head ** float(exponent)) <= 1e-3 * abs(value):
            return exponent
    return None


@axis_rule("RotaryEmbedding")
def rotary_embedding(ctx: RuleContext) -> None:
    """``x [B, heads, T, d]`` or ``[B, T, heads * d]`` with tables of cosines and sines ``[..., d / 2]``."""
    _rotary(ctx, tables=(1, 2), heads=int(ctx.attr("num_heads", 0)))


@axis_rule("RotaryEmbedding", domain=MICROSOFT)
def microsoft_rotary_embedding(ctx: RuleContext) -> None:
    """The same with positions as second input and the tables behind it."""
    _rotary(ctx, tables=(2, 3), heads=int(ctx.attr("num_heads", 0)))


def _rotary(ctx: RuleContext, tables: tuple[int, int], heads: int) -> None:
    x = ctx.axes(0)
    if x is None:
        _fix(ctx, range(4), "a tensor of unknown shape is rotated")
        return
    packed = len(x) == 3
    if packed and not heads:
        ctx.pin(x[2], "it is rotated, and the number of heads is not stated")
    head = x[2].size / heads if packed and heads else x[-1].size
    ctx.system.require_integer(head)
    if ctx.attr("rotary_embedding_dim", 0):
        ctx.pin(head, "only a part of each head is rotated")
    else:
        half = head / 2
        ctx.system.require_integer(half)
        for position in tables:
            table = ctx.axes(position)
            if table is not None and ctx.original(table[-1]) == ctx.original(half):
                ctx.equate(table[-1], half, "rotary table")
                _recognise(ctx, position, table[-1])
    ctx.set_axes(0, x)


def _recognise(ctx: RuleContext, position: int, axis: Axis) -> None:
    """Have the table computed anew, or keep its class as it is."""
    parameter = ctx.parameter(position)
    if parameter is None:
        return  # computed in the graph from frequencies
    recipe = recognise_rotary(array_of(parameter[0]))
    if recipe is None:
        ctx.pin(axis, "its rotary table was not recognised")
    else:
        ctx.analysis.tables[parameter[0].name] = recipe


@axis_rule("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(ctx: RuleContext) -> None:
    """``query [B, T, heads * d]``, ``key``, ``value``, and one bias for all three; packed forms keep their sizes."""
    q, k, v = (ctx.axes(i) for i in range(3))
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 3:
        _fix(ctx, range(10), "this layout of attention is not covered")
        return
    heads, head, value_head = _packed_heads(ctx, q[2], k[2], v[2], ("num_heads", "num_heads"))
    bias = ctx.axes(3)
    if bias is not None:
        ctx.equate(bias[0], q[2].size + k[2].size + v[2].size, "bias of queries, keys and values")
    for position in range(4, 8):
        ctx.pin_all(ctx.axes(position), "attention reads it")
    _register(ctx, q[0].size, heads, q[1].size, k[1].size, head, value_head)
    ctx.set_axes(0, (q[0], q[1], v[2]))
    for i in range(1, len(ctx.node.outputs)):
        ctx.set_axes(i, ctx.inferred_axes(i))
    if "scale" in ctx.node.attrs:
        _scale_attribute(ctx, "scale", head)


@axis_rule("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(ctx: RuleContext) -> None:
    """``query [B, T, heads * d]``, ``key`` and ``value [B, T, kv_heads * d]``, pasts ``[B, kv_heads, P, d]``."""
    q, k, v = (ctx.axes(i) for i in range(3))
    if q is None or k is None or v is None:
        _fix(ctx, range(9), "this layout of attention is not covered")
        return
    heads, head, value_head = _packed_heads(ctx, q[2], k[2], v[2], ("num_heads", "kv_num_heads"))
    for position, size in ((3, head), (4, value_head)):
        past = ctx.axes(position)
        if past is not None:
            ctx.equate(past[-1], size, "past keys and values")
            ctx.pin(past[1], "past keys and values")
            if position - 2 < len(ctx.node.outputs):
                total = ctx.output_shape(position - 2)
                length = total[2] if total is not None else None
                rest = past[2] if length is None else ctx.const_axes([length])[0]
                ctx.set_axes(position - 2, (past[0], past[1], rest, past[3]))
    if ctx.attr("do_rotary", 0):
        for position in (7, 8):
            table = ctx.axes(position)
            if table is not None:
                ctx.equate(table[-1], head / 2, "rotary table")
                _recognise(ctx, position, table[-1])
    _register(ctx, q[0].size, heads, q[1].size, k[1].size, head, value_head)
    width = v[2].size * (ctx.attr("num_heads") // ctx.attr("kv_num_heads"))
    ctx.set_axes(0, (q[0], q[1], _packed_axis(ctx, width, value_head)))
    if "scale" in ctx.node.attrs:
        _scale_attribute(ctx, "scale", head)


@axis_rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(ctx: RuleContext) -> None:
    """``input + skip (+ bias)``, normalized; the sum is the fourth output."""
    x, skip = ctx.axes(0), ctx.axes(1)
    if x is None or skip is None:
        _fix(ctx, range(5), "a tensor of unknown shape is normalized")
        return
    out = broadcast(ctx, [x, skip])
    for position in range(2, len(ctx.node.inputs)):
        parameter = ctx.axes(position)
        if parameter is not None:
            ctx.equate(parameter[-1], out[-1], "parameter of the normalized axis")
    ctx.set_axes(0, out)
    for i in (1, 2):
        ctx.set_axes(i, (*out[:-1], Axis(size_of(1))))
    ctx.set_axes(3, out)


@axis_rule("BiasGelu", "FastGelu", "BiasAdd", "BiasSplitGelu", domain=MICROSOFT)
def bias_gelu(ctx: RuleContext) -> None:
    """``x`` plus an optional bias, through an activation."""
    x, bias = ctx.axes(0), ctx.axes(1)
    if x is None or ctx.node.op == "BiasSplitGelu":
        _fix(ctx, range(3), "its shape is unknown here")
        return
    ctx.set_axes(0, x if bias is None else broadcast(ctx, [x, bias]))


@axis_rule("Gelu", "QuickGelu", domain=MICROSOFT)
def gelu(ctx: RuleContext) -> None:
    """One tensor in, one of the same shape out."""
    ctx.set_axes(0, ctx.axes(0))


def _fix(ctx: RuleContext, positions: range, reason: str) -> None:
    for position in positions:
        ctx.pin_all(ctx.axes(position), reason)
    for i in range(len(ctx.node.outputs)):
        ctx.set_axes(i, ctx.inferred_axes(i))
