"""Fused operators of the com.microsoft domain around attention and convolutions."""

from __future__ import annotations

from sift_onnx.analysis.axes.sizes import Axis, size_of
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule
from sift_onnx.analysis.rules.convolution import convolution
from sift_onnx.analysis.rules.elementwise import binary, broadcast, unary
from sift_onnx.operators.domains import MICROSOFT


@axis_rule("FusedConv", domain=MICROSOFT)
def fused_conv(ctx: RuleContext) -> None:
    """A Conv followed by an activation, to which a fourth input may be added."""
    convolution(ctx)
    out, added = ctx.analysis.axes.get(ctx.node.outputs[0].name), ctx.axes(3)
    for axis, other in zip(out or (), added or (), strict=False):
        ctx.equate(axis, other, "they meet element by element")


@axis_rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(ctx: RuleContext) -> None:
    """``input + skip (+ bias)``, normalized; the sum is the fourth output."""
    x, skip = ctx.axes(0), ctx.axes(1)
    if x is None or skip is None:
        ctx.keep_sizes("a tensor of unknown shape is normalized")
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


@axis_rule("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(ctx: RuleContext) -> None:
    """Rows of tables for words, positions and segments, added up and normalized; the sum is the third output."""
    ids, words = ctx.axes(0), ctx.axes(2)
    if ids is None or words is None:
        ctx.keep_sizes("a tensor of unknown shape is normalized")
        return
    for position in (2, 3, 4):
        table, parameter = ctx.axes(position), ctx.parameter(position)
        if table is None:
            continue
        ctx.pin(table[0], "indices point into it")
        ctx.equate(table[1], words[1], "embeddings are added up")
        if parameter is not None:
            # A look-up copies; it multiplies nothing.
            ctx.weight(parameter, "embedding", 1, (size_of(0),))
    for position in (5, 6):
        for axis in ctx.axes(position) or ():
            ctx.equate(axis, words[1], "parameter of the normalized axis")
    ctx.set_axes(0, (*ids, words[1]))
    ctx.set_axes(1, (ids[0],))
    ctx.set_axes(2, (*ids, words[1]))


# ``x`` plus an optional bias, through an activation.
axis_rule("BiasGelu", "FastGelu", "BiasAdd", domain=MICROSOFT)(binary)
axis_rule("Gelu", "QuickGelu", domain=MICROSOFT)(unary)
