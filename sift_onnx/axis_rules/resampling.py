"""Resize, DepthToSpace and other ways to change spatial sizes."""

from __future__ import annotations

from sift_onnx.axes import Axis
from sift_onnx.axis_rules.context import RuleContext
from sift_onnx.axis_rules.registry import axis_rule


@axis_rule("Resize", "Upsample", "GridSample", "AffineGrid", "CenterCropPad", "Col2Im")
def resample(ctx: RuleContext) -> None:
    """Axes that keep their size pass; those that change keep the sizes of the original."""
    x, shape = ctx.axes(0), ctx.output_shape()
    if x is None or shape is None or len(shape) != len(x) or any(n is None for n in shape):
        ctx.pin_all(x, "the size that it is resampled to is unknown")
        ctx.set_axes(0, ctx.inferred_axes())
        return
    out = list(x)
    asked = ctx.elements(3) if ctx.node.op == "Resize" else None
    for i, n in enumerate(shape):
        if n is not None and (n != ctx.original(x[i]) or i > 1):
            ctx.pin(x[i], "it is resampled")
            out[i] = ctx.const_axes([n])[0]
    if asked is not None and asked.size == len(out) and not ctx.attr("axes"):
        for element, axis in zip(asked.reshape(-1), out, strict=True):
            ctx.tie(element, axis.size, "a resize states this size")
    ctx.set_axes(0, out)


@axis_rule("DepthToSpace")
def depth_to_space(ctx: RuleContext) -> None:
    """``[N, C, H, W]`` -> ``[N, C / b^2, H * b, W * b]``."""
    _change_depth(ctx, shrink=True)


@axis_rule("SpaceToDepth")
def space_to_depth(ctx: RuleContext) -> None:
    """``[N, C, H, W]`` -> ``[N, C * b^2, H / b, W / b]``."""
    _change_depth(ctx, shrink=False)


def _change_depth(ctx: RuleContext, *, shrink: bool) -> None:
    x, shape = ctx.axes(0), ctx.output_shape()
    if x is None or shape is None or any(n is None for n in shape[2:]):
        ctx.pin_all(x, "its spatial size is unknown")
        ctx.set_axes(0, ctx.inferred_axes())
        return
    ctx.pin_all(x[2:], "its pixels are rearranged")
    blocks = int(ctx.attr("blocksize")) ** 2
    size = x[1].size / blocks if shrink else x[1].size * blocks
    ctx.system.require_integer(size)
    channels = Axis(size, 1, ctx.original(size))
    ctx.set_axes(0, (x[0], channels, *ctx.const_axes([n for n in shape[2:] if n is not None])))


@axis_rule("RoiAlign", "MaxRoiPool")
def roi(ctx: RuleContext) -> None:
    """``x [N, C, H, W]`` and boxes -> ``[boxes, C, h, w]``."""
    x, out = ctx.axes(0), ctx.inferred_axes()
    if x is None or out is None:
        ctx.pin_all(x, "the number of regions is unknown")
        ctx.set_axes(0, out)
        return
    ctx.set_axes(0, (out[0], x[1], *out[2:]))
