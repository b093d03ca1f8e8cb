"""Attention of opset 23 and later, and what every attention operator has in common.

Heads stay as many as they are and their size grows, unless the analysis is asked for something else. Queries and keys
share a head size, values have their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from sift_onnx.analysis.axes.sizes import Axis, Size, size_of
from sift_onnx.analysis.findings import Axes, ScaleEdit
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule

__all__ = [
    "Heads",
    "bias_of_scores",
    "merged",
    "packed_heads",
    "past_and_present",
    "register_products",
    "scale_exponent",
]


@dataclass(frozen=True)
class Heads:
    """Heads of an attention and their sizes.

    Attributes:
        queries: number of heads of the queries.
        keys: number of heads of keys and values, which queries may share.
        size: of a head of queries and keys.
        value_size: of a head of values.
    """

    queries: Size
    keys: Size
    size: Size
    value_size: Size


@axis_rule("Attention")
def attention(ctx: RuleContext) -> None:
    """``q, k, v`` as ``[B, heads, T, d]`` or ``[B, T, heads * d]``; keys and values may have fewer heads."""
    q, k, v = (ctx.axes(i) for i in range(3))
    if q is None or k is None or v is None:
        ctx.keep_sizes("attention over a tensor of unknown shape")
        return
    if len(q) == 4:
        ctx.equate(k[1], v[1], "heads of keys and values")
        ctx.equate(q[1], k[1].size * (ctx.original(q[1]) // ctx.original(k[1])), "heads share keys and values")
        ctx.equate(q[3], k[3], "queries meet keys")
        heads = Heads(q[1].size, k[1].size, q[3].size, v[3].size)
        out: Axes = (*q[:3], v[3])
    else:
        heads = packed_heads(ctx, q[2], k[2], v[2], ("q_num_heads", "kv_num_heads"))
        out = (q[0], q[1], merged(ctx, v[2], heads))
    ctx.equate(k[-2], v[-2], "positions of keys and values")
    bias_of_scores(ctx, 3, heads)
    total = past_and_present(ctx, (4, 5), (1, 2), q[0], k[-2], heads)
    register_products(ctx, q[0].size, q[-2].size, total, heads)
    ctx.set_axes(0, out)
    ctx.set_axes(3, (q[0], Axis(heads.queries), q[-2], Axis(total)))


def packed_heads(ctx: RuleContext, q: Axis, k: Axis, v: Axis, attributes: tuple[str, str]) -> Heads:
    """Heads and their sizes where both lie in one axis, and the number of heads is an attribute."""
    heads, kv_heads = (int(ctx.attr(name)) for name in attributes)
    growth = ctx.analysis.attention
    if growth == "keep":
        ctx.pin_all((q, k, v), "attention keeps its heads and their size (`attention='keep'`)")
    if growth == "heads":
        size, value_size = ctx.original(q) // heads, ctx.original(v) // kv_heads
        ctx.equate(q, k.size * (heads // kv_heads), "heads share keys and values")
        ctx.equate(k.size / size, v.size / value_size, "heads of keys and values")
        for name, number in zip(attributes, (q.size / size, k.size / size), strict=True):
            ctx.system.require_integer(number)
            ctx.set_attribute(name, number)
        return Heads(q.size / size, k.size / size, size_of(size), size_of(value_size))
    sizes = (q.size / heads, k.size / kv_heads, v.size / kv_heads)
    for part in sizes:
        ctx.system.require_integer(part)
    ctx.equate(sizes[0], sizes[1], "queries meet keys")
    return Heads(size_of(heads), size_of(kv_heads), sizes[0], sizes[2])


def merged(ctx: RuleContext, v: Axis, heads: Heads) -> Axis:
    """The axis of the output in which all heads of the queries lie, ``v`` being that of the values."""
    shared = ctx.original(heads.queries) // ctx.original(heads.keys)
    width, span = v.size * shared, ctx.original(heads.value_size)
    if ctx.analysis.attention == "heads":
        return Axis(width, span, ctx.original(width) // span)
    return Axis(width, 1, span)


def bias_of_scores(ctx: RuleContext, position: int, heads: Heads) -> None:
    """A mask or bias ``[..., heads, rows, columns]``, broadcast to the scores, at an input."""
    bias = ctx.axes(position) or ()
    for i, axis in enumerate(bias):
        if i == len(bias) - 3 and ctx.original(axis) != 1:
            ctx.equate(axis, heads.queries, "a bias for each head")
        else:
            ctx.pin(axis, "positions of attention")


def past_and_present(
    ctx: RuleContext,
    inputs: tuple[int, int],
    outputs: tuple[int, int],
    batch: Axis,
    length: Axis,
    heads: Heads,
    total: Size | None = None,
) -> Size:
    """Keys and values ``[B, heads, T, d]`` that are read and handed out; the number of positions that are attended to.

    Args:
        ctx: the node.
        inputs: where past keys and values are read.
        outputs: where keys and values are handed out.
        batch: the axis of the batch.
        length: the new positions.
        heads: the heads.
        total: how many positions are handed out; those of the past and the new ones unless given.
    """
    for position, size in zip(inputs, (heads.size, heads.value_size), strict=True):
        past = ctx.axes(position)
        if past is None:
            continue
        ctx.equate(past[1], heads.keys, "heads of past keys and values")
        ctx.equate(past[3], size, "past keys and values")
        ctx.pin(past[2], "positions of the past")
    if total is None:
        past = ctx.axes(inputs[0])
        total = length.size if past is None else past[2].size + length.size
    for position, size in zip(outputs, (heads.size, heads.value_size), strict=True):
        ctx.set_axes(position, (batch, Axis(heads.keys), Axis(total), Axis(size, 1, ctx.original(size))))
    return total


def register_products(ctx: RuleContext, batch: Size, rows: Size, columns: Size, heads: Heads) -> None:
    """The products with keys and with values, and the factor between them."""
    exponent = None
    if "scale" in ctx.node.attrs:
        exponent = scale_exponent(float(ctx.attr("scale")), ctx.original(heads.size))
    if exponent is not None:
        ctx.analysis.scale_edits.append(ScaleEdit(ctx.index, "scale", exponent, heads.size))
    # A scale that has nothing to do with the size of a head may have its counterpart outside of the node.
    elsewhere = "scale" in ctx.node.attrs and exponent is None
    ctx.product(batch, heads.queries, rows, columns, heads.size, summed=heads.size if elsewhere else None)
    ctx.product(batch, heads.queries, rows, columns, heads.value_size)


def scale_exponent(value: float, head: int) -> Fraction | None:
    """The power of the head size that ``value`` is: -1/2, -1/4, 1/2 or 1/4; None if it is none of these."""
    if head < 2:
        return None
    for exponent in (Fraction(-1, 2), Fraction(-1, 4), Fraction(1, 2), Fraction(1, 4)):
        if abs(value - head ** float(exponent)) <= 1e-3 * abs(value):
            return exponent
    return None
