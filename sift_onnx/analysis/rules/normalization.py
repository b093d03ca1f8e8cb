"""Normalizations: parameters belong to the axes that are normalized, or to the channels."""

from __future__ import annotations

from collections.abc import Sequence

from sift_onnx.analysis.axes.sizes import Axis, size_of
from sift_onnx.analysis.findings import Axes
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule
from sift_onnx.analysis.rules.elementwise import unary

__all__ = ["trailing_parameters"]


@axis_rule("BatchNormalization")
def batch_normalization(ctx: RuleContext) -> None:
    """``x [N, C, ...]`` with scale, bias, mean and variance ``[C]``; in training mode also new statistics."""
    x = _channel_parameters(ctx, range(1, 5))
    if x is None:
        return
    ctx.set_axes(0, x)
    for i in range(1, len(ctx.node.outputs)):
        ctx.set_axes(i, (x[1] if len(x) > 1 else x[0],))


@axis_rule("InstanceNormalization")
def instance_normalization(ctx: RuleContext) -> None:
    """``x [N, C, ...]`` with scale and bias ``[C]``."""
    x = _channel_parameters(ctx, range(1, 3))
    if x is not None:
        ctx.set_axes(0, x)


@axis_rule("GroupNormalization")
def group_normalization(ctx: RuleContext) -> None:
    """``x [N, C, ...]``, scale and bias ``[C]`` (``[groups]`` before opset 21).

    Groups stay, and each gets wider; where each channel is a group, or the analysis is asked for it, there are more. A
    single group stays one.
    """
    x = ctx.axes(0)
    if x is None:
        ctx.keep_sizes("it belongs to a tensor of unknown shape")
        return
    groups = int(ctx.attr("num_groups"))
    width = ctx.original(x[1]) // groups
    more_groups = width == 1 or (ctx.analysis.whole_groups and groups > 1)
    if more_groups:
        ctx.system.require_integer(x[1].size / width)
        ctx.set_attribute("num_groups", x[1].size / width)
    else:
        ctx.system.require_integer(x[1].size / groups)
    for position in (1, 2):
        for axis in ctx.axes(position) or ():
            if ctx.opset >= 21:
                ctx.equate(axis, x[1], "parameter of the channels")
            elif more_groups:
                ctx.equate(axis, x[1].size / width, "parameter of the groups")
            else:
                ctx.pin(axis, "parameter of the groups")
    ctx.set_axes(0, x)


@axis_rule("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def layer_normalization(ctx: RuleContext) -> None:
    """``x`` is normalized over its axes from ``axis`` on; scale and bias have the shape of these."""
    x = ctx.axes(0)
    if x is None:
        ctx.keep_sizes("it belongs to a tensor of unknown shape")
        return
    trailing_parameters(ctx, x, range(1, 3))
    ctx.set_axes(0, x)
    first = int(ctx.attr("axis", -1)) % len(x)
    statistics = [axis if i < first else Axis(size_of(1)) for i, axis in enumerate(x)]
    for i in range(1, len(ctx.node.outputs)):
        ctx.set_axes(i, statistics)


def trailing_parameters(ctx: RuleContext, x: Axes, positions: Sequence[int]) -> None:
    """Parameters at these inputs are broadcast to the last axes of ``x``."""
    for position in positions:
        for axis, other in zip(reversed(ctx.axes(position) or ()), reversed(x), strict=False):
            if ctx.original(axis) != 1:
                ctx.equate(axis, other, "parameter of the normalized axes")


# What is computed along an axis leaves every size as it is.
axis_rule("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "LRN", "MeanVarianceNormalization")(unary)
axis_rule("CumSum", "CumProd", "Trilu")(unary)


def _channel_parameters(ctx: RuleContext, positions: Sequence[int]) -> Axes | None:
    x = ctx.axes(0)
    if x is None:
        ctx.keep_sizes("it belongs to a tensor of unknown shape")
        return None
    channel = x[1] if len(x) > 1 else x[0]
    for position in positions:
        axes = ctx.axes(position)
        if axes is not None:
            ctx.equate(channel, axes[0], "parameter of the channels")
    return x
