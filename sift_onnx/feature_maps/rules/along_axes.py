"""Normalizations, reductions and pooling: what they mix must not grow."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sift_onnx.feature_maps.context import FeatureMapContext
from sift_onnx.feature_maps.findings import Extent
from sift_onnx.feature_maps.registry import feature_map_rule

__all__ = ["correct_normalization", "normalized_from"]

# From this opset on, Softmax and its kin look at one axis; before, at all axes from there on as one.
_ONE_AXIS = 13
# What zeros do not change.
_SUMS = frozenset(f"Reduce{name}" for name in "L1 L2 Sum SumSquare".split())


@feature_map_rule("BatchNormalization")
def batch_normalization(ctx: FeatureMapContext) -> None:
    """``x [N, C, ...]`` with scale, bias, mean and variance ``[C]``: each channel by itself."""
    _each_channel(ctx, range(1, 5))


@feature_map_rule("InstanceNormalization")
def instance_normalization(ctx: FeatureMapContext) -> None:
    """``x [N, C, ...]`` with scale and bias ``[C]``: each channel by itself, over its pixels.

    Exporters spell a group normalization of one group so, with whole images as the only channel: these get features.
    """
    x = ctx.input(0)
    if x[1].old == 1 and any(axis.grows for axis in x[2:]) and ctx.require_centred_images():
        _one_group(ctx, x, 2)
        return
    ctx.require_fixed(x[2:], "normalizes over")
    _each_channel(ctx, range(1, 3))


def _one_group(ctx: FeatureMapContext, x: Sequence[Extent], first: int) -> None:
    """Features and pixels are normalized together, from axis ``first`` on, as a LayerNormalization would do it."""
    normalized_from(ctx, x, first, ())
    correct_normalization(ctx, x[first:], 1, 1e-5)


@feature_map_rule("GroupNormalization")
def group_normalization(ctx: FeatureMapContext) -> None:
    """There are more groups, each of which is normalized by itself; parameters are ``[C]`` or ``[groups]``.

    A single group gets wider. What is added is zero, and the mean over the group has to be zero as well.
    """
    x = ctx.input(0)
    ctx.require_fixed(x[2:], "normalizes over")
    number = int(ctx.attr("num_groups"))
    if number == 1 and x[1].grows:
        for i in (1, 2):
            ctx.broadcast(ctx.input(i), x[1:2])
        ctx.require_centred(0, range(1, len(x)))
        _one_group(ctx, x, 1)
        return
    width = x[1].old // number
    if x[1].new % width:
        ctx.require_fixed(x[1:2], "normalizes over groups of")
    groups = ctx.free(number, x[1].new // width)
    ctx.merged(x[1], groups, inner=width)
    for i in (1, 2):
        for axis in ctx.input(i):
            ctx.same(axis, x[1] if axis.old == x[1].old else groups)
    ctx.same_axes(x, ctx.output())


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
    """``x`` is normalized over its axes from ``axis`` on, where added features are zero.

    Over ``D`` features, of which ``d`` are old, the mean square is ``d / D`` times what it was. With ``d / D`` times
    its epsilon, and ``sqrt(d / D)`` times its scale, the node computes what it did; so it does if it subtracts a mean
    that is zero.
    """
    x = ctx.input(0)
    first = int(ctx.attr("axis", -1)) % len(x)
    if any(tensor.name and tensor.outputs for tensor in ctx.node.outputs[1:]):
        ctx.require_fixed(x[first:], "hands out statistics over")
    normalized_from(ctx, x, first, range(1, 3))
    if ctx.node.op == "LayerNormalization" and any(axis.grows for axis in x[first:]):
        ctx.require_centred(0, range(first, len(x)))
    correct_normalization(ctx, x[first:], 1, 1e-5)


def normalized_from(ctx: FeatureMapContext, x: Sequence[Extent], first: int, parameters: Sequence[int]) -> None:
    """``x`` is normalized over its axes from ``first`` on; ``parameters`` are the inputs that are broadcast to it."""
    ctx.require_zero((0,), x[first:], "normalizes over")
    for i in parameters:
        ctx.broadcast(ctx.input(i), x)
    ctx.same_axes(x, ctx.output())
    for i in range(1, len(ctx.node.outputs)):
        for axis, other in zip(x, ctx.output(i), strict=False):
            if axis.old == other.old:
                ctx.same(axis, other)


def correct_normalization(ctx: FeatureMapContext, mixed: Sequence[Extent], scale: int, epsilon: float) -> None:
    """Correct a normalization over the axes ``mixed`` for added zeros.

    Args:
        ctx: the node.
        mixed: what it normalizes over.
        scale: the input that scales features.
        epsilon: what the operator takes where none is stated.
    """
    factor = math.prod(axis.old for axis in mixed) / math.prod(axis.new for axis in mixed)
    if factor != 1:
        ctx.set_attribute("epsilon", float(ctx.attr("epsilon", epsilon)) * factor)
        ctx.scale_parameter(scale, math.sqrt(factor))


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
    """Zeros add nothing to a norm."""
    ctx.require_zero((0,), [ctx.input(0)[int(ctx.attr("axis", -1))]], "normalizes over")
    ctx.same_axes(ctx.input(0), ctx.output())


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
    """What is reduced must not grow, but zeros may be added to a sum, and to a mean, which has to be corrected."""
    x, out = ctx.input(0), ctx.output()
    reduced = _reduced(ctx, len(x))
    mixed = [axis for i, axis in enumerate(x) if i in reduced]
    if ctx.node.op in _SUMS:
        ctx.require_zero((0,), mixed, "reduces")
    elif ctx.node.op == "ReduceMean":
        _mean(ctx, mixed, sorted(reduced))
    else:
        ctx.require_fixed(mixed, "reduces")
    kept = [i for i in range(len(x)) if i not in reduced]
    places = kept if ctx.attr("keepdims", 1) else range(len(kept))
    for i, j in zip(kept, places, strict=True):
        ctx.same(x[i], out[j])


def _mean(ctx: FeatureMapContext, mixed: Sequence[Extent], reduced: Sequence[int]) -> None:
    if not any(axis.grows for axis in mixed):
        return
    x, mean = ctx.node.inputs[0], ctx.node.outputs[0]
    readers = mean.outputs
    ctx.require_zero((0,), mixed, "reduces")
    if readers and all(node.op == "Sub" and node.inputs[0] is x and node.inputs[1] is mean for node in readers):
        ctx.require_centred_difference(reduced)
        return
    ctx.scales_mean(math.prod(axis.old for axis in mixed) / math.prod(axis.new for axis in mixed))


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
