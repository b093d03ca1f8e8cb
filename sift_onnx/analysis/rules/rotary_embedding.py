"""RotaryEmbedding of opset 23 and later, and of the com.microsoft domain: tables are half as wide as a head."""

from __future__ import annotations

from sift_onnx.analysis.axes.sizes import size_of
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule
from sift_onnx.analysis.rules.stored_tables import recompute_table
from sift_onnx.operators.domains import MICROSOFT


@axis_rule("RotaryEmbedding")
def rotary_embedding(ctx: RuleContext) -> None:
    """``x [B, heads, T, d]`` or ``[B, T, heads * d]`` with tables of cosines and sines ``[..., d / 2]``."""
    _rotary(ctx, tables=(1, 2))


@axis_rule("RotaryEmbedding", domain=MICROSOFT)
def microsoft_rotary_embedding(ctx: RuleContext) -> None:
    """The same with positions as second input and the tables after it."""
    _rotary(ctx, tables=(2, 3))


def _rotary(ctx: RuleContext, tables: tuple[int, int]) -> None:
    x = ctx.axes(0)
    if x is None:
        ctx.keep_sizes("a tensor of unknown shape is rotated")
        return
    ctx.set_axes(0, x)
    heads = int(ctx.attr("num_heads", 0))
    packed = len(x) == 3
    if packed and not heads:
        ctx.pin(x[2], "it is rotated, and the number of heads is not stated")
        return
    head = x[2].size / heads if packed else x[-1].size
    if packed and ctx.analysis.attention == "heads":
        head = size_of(ctx.original(head))
        number = x[2].size / ctx.original(head)
        ctx.system.require_integer(number)
        ctx.set_attribute("num_heads", number)
    ctx.system.require_integer(head)
    if ctx.attr("rotary_embedding_dim", 0):
        ctx.pin(head, "only a part of each head is rotated")
        return
    half = head / 2
    ctx.system.require_integer(half)
    for position in tables:
        table = ctx.axes(position)
        if table is not None and ctx.original(table[-1]) == ctx.original(half):
            ctx.equate(table[-1], half, "rotary table")
            recompute_table(ctx, position, table[-1])
