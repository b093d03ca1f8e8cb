"""Normalizations: parameters belong to the channels."""

from __future__ import annotations

from sift_onnx.axis_rules.context import RuleContext
from sift_onnx.axis_rules.registry import axis_rule


@axis_rule("BatchNormalization")
def batch_normalization(ctx: RuleContext) -> None:
    """``x [N, C, ...]`` with scale, bias, mean and variance ``[C]``; in training mode also new statistics."""
    x = ctx.axes(0)
    parameters = [ctx.axes(i) for i in range(1, 5)]
    if x is None:
        for axes in parameters:
            ctx.pin_all(axes, "it belongs to a tensor of unknown shape")
        ctx.set_axes(0, ctx.inferred_axes())
        return
    channel = x[1] if len(x) > 1 else x[0]
    for axes in parameters:
        if axes is not None:
            ctx.equate(channel, axes[0], "parameter of the channels")
    ctx.set_axes(0, x)
    for i in range(1, len(ctx.node.outputs)):
        ctx.set_axes(i, (channel,))
