"""Normalizations, reductions and pooling: what they mix must not grow."""

from __future__ import annotations

from collections.abc import Sequence

from sift_onnx.feature_maps.context import Extent, FeatureMapContext
from sift_onnx.feature_maps.registry import feature_map_rule
from sift_onnx.operators.domains import MICROSOFT

# From this opset on, Softmax and its kin look at one axis; before, at all axes from there on as one.
_ONE_AXIS = 13


@feature_map_rule("BatchNormalization")
def batch_normalization(ctx: FeatureMapContext) -> None:
    """``x [N, C, ...]`` with scale, bias, mean and variance ``[C]``: each channel by itself."""
    _each_channel(ctx, range(1, 5))


@feature_map_rule("InstanceNormalization")
def instance_normalization(ctx: FeatureMapContext) -> None:
    """``x [N, C, ...]`` with scale and bias ``[C]``: each channel by itself, over its pixels."""
    ctx.require_fixed(ctx.input(0)[2:], "normalizes over")
    _each_channel(ctx, range(1, 3))


@feature_map_rule("GroupNormalization")
def group_normalization(ctx: FeatureMapContext) -> None:
    """Groups of one channel are each channel by itself."""
    x = ctx.input(0)
    ctx.require_fixed(x[2:], "normalizes over")
    if int(ctx.attr("num_groups")) != x[1].old:
        ctx.require_fixed(x[1:2], "normalizes over groups of")
    _each_channel(ctx, range(1, 3))


def _each_channel(ctx: FeatureMapContext, parameters: range) -> None:
    x = ctx.input(0)
    channel = x[1] if len(x) > 1 else x[0]
    for i in parameters:
        for axis in ctx.input(i):
            ctx.same(axis, channel)
    ctx.same_axes(x, ctx.output())
    for i in range(1, len(ctx.node.outputs)):
        for axis in ctx.output(i):
            ctx.same(axis, channel)


@feature_map_rule("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def layer_normalization(ctx: FeatureMapContext) -> None:
    """``x`` is normalized over its axes from ``axis`` on."""
    x = ctx.input(0)
    _normalized_from(ctx, x, int(ctx.attr("axis", -1)) % len(x))


@feature_map_rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(ctx: FeatureMapContext) -> None:
    """``input + skip`` is normalized over its last axis."""
    x = ctx.input(0)
    _normalized_from(ctx, x, len(x) - 1)


def _normalized_from(ctx: FeatureMapContext, x: Sequence[Extent], first: int) -> None:
    ctx.require_fixed(x[first:], "normalizes over")
    for i in range(len(ctx.node.outputs)):
        for axis, other in zip(x[:first], ctx.output(i), strict=False):
            ctx.same(axis, other)


@feature_map_rule("Softmax", "LogSoftmax", "Hardmax")
def softmax(ctx: FeatureMapContext) -> None:
    """What is normalized must not grow."""
    x = ctx.input(0)
    axis = int(ctx.attr("axis", -1 if ctx.opset >= _ONE_AXIS else 1)) % len(x)
    mixed = x[axis:] if ctx.opset < _ONE_AXIS else x[axis : axis + 1]
    _along(ctx, mixed, "normalizes over")


@feature_map_rule("CumSum")
def cumulative_sum(ctx: FeatureMapContext) -> None:
    """What is summed up must not grow."""
    position = ctx.integers(1)
    _along(ctx, ctx.input(0) if position is None else [ctx.input(0)[position[0]]], "sums along")


@feature_map_rule("LpNormalization")
def lp_normalization(ctx: FeatureMapContext) -> None:
    """What is normalized must not grow."""
    _along(ctx, [ctx.input(0)[int(ctx.attr("axis", -1))]], "normalizes over")


@feature_map_rule("LRN")
def local_response_normalization(ctx: FeatureMapContext) -> None:
    """Neighbouring channels are mixed."""
    _along(ctx, ctx.input(0)[1:2], "normalizes over neighbours along")


@feature_map_rule("TopK")
def top_k(ctx: FeatureMapContext) -> None:
    """What is sorted does not grow."""
    x = ctx.input(0)
    position = int(ctx.attr("axis", -1)) % len(x)
    ctx.require_fixed([x[position]], "sorts")
    for i in range(len(ctx.node.outputs)):
        ctx.same_but(position, x, ctx.output(i))


def _along(ctx: FeatureMapContext, mixed: Sequence[Extent], verb: str) -> None:
    ctx.require_fixed(mixed, verb)
    ctx.same_axes(ctx.input(0), ctx.output())


@feature_map_rule(
    "AveragePool", "MaxPool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "Resize", "Upsample"
)
def pool(ctx: FeatureMapContext) -> None:
    """Channels stay apart; what is pooled or resampled does not grow."""
    for i in range(len(ctx.node.outputs)):
        for axis, other in zip(ctx.input(0), ctx.output(i), strict=True):
            if axis.grows or other.grows:
                ctx.same(axis, other)


@feature_map_rule(
    *(f"Reduce{name}" for name in "L1 L2 LogSumExp Max Mean Min Prod Sum SumSquare".split()), "ArgMax", "ArgMin"
)
def reduce(ctx: FeatureMapContext) -> None:
    """What is reduced must not grow."""
    x, out = ctx.input(0), ctx.output()
    reduced = _reduced(ctx, len(x))
    ctx.require_fixed([axis for i, axis in enumerate(x) if i in reduced], "reduces")
    kept = [i for i in range(len(x)) if i not in reduced]
    places = kept if ctx.attr("keepdims", 1) else range(len(kept))
    for i, j in zip(kept, places, strict=True):
        ctx.same(x[i], out[j])


def _reduced(ctx: FeatureMapContext, rank: int) -> set[int]:
    if ctx.node.op.startswith("Arg"):
        return {int(ctx.attr("axis", 0)) % rank}
    axes = ctx.attr("axes")
    if axes is None and ctx.has_input(1):
        axes = ctx.integers(1)
        if axes is None:
            ctx.refuse("reduces computed axes")
    if not axes:
        return set() if ctx.attr("noop_with_empty_axes", 0) else set(range(rank))
    return {int(axis) % rank for axis in axes}
