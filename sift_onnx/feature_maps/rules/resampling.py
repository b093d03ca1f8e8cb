"""What takes pixels from other places, channel by channel."""

from __future__ import annotations

import math

from sift_onnx.feature_maps.context import FeatureMapContext
from sift_onnx.feature_maps.registry import feature_map_rule


@feature_map_rule("GridSample", "RoiAlign", "MaxRoiPool")
def sampled(ctx: FeatureMapContext) -> None:
    """``x [N, C, ...]`` at places that other inputs state -> ``[M, C, ...]``."""
    x, out = ctx.input(0), ctx.output()
    others = (axis for i in range(1, len(ctx.node.inputs)) for axis in ctx.input(i))
    ctx.require_fixed((x[0], *x[2:], *others), "takes samples along")
    ctx.same(x[1], out[1])


@feature_map_rule("CenterCropPad")
def center_crop_pad(ctx: FeatureMapContext) -> None:
    """What is cropped or padded does not grow."""
    for axis, other in zip(ctx.input(0), ctx.output(), strict=True):
        if axis.grows or other.grows:
            ctx.same(axis, other)


@feature_map_rule("Col2Im")
def col2im(ctx: FeatureMapContext) -> None:
    """``x [N, C * pixels of a block, blocks]`` -> ``[N, C, ...]``."""
    block = ctx.integers(2)
    if block is None:
        ctx.refuse("has blocks of a computed size")
    ctx.require_fixed((ctx.input(0)[0], ctx.input(0)[2]), "lays blocks along")
    ctx.merged(ctx.input(0)[1], ctx.output()[1], inner=math.prod(block))


@feature_map_rule("DepthToSpace")
def depth_to_space(ctx: FeatureMapContext) -> None:
    """``[N, b * b * C, H, W]``, or ``[N, C * b * b, H, W]`` with ``mode=CRD``, -> ``[N, C, H * b, W * b]``."""
    side = "outer" if ctx.attr("mode", "DCR") == "DCR" else "inner"
    ctx.merged(ctx.input(0)[1], ctx.output()[1], **{side: int(ctx.attr("blocksize")) ** 2})


@feature_map_rule("SpaceToDepth")
def space_to_depth(ctx: FeatureMapContext) -> None:
    """``[N, C, H * b, W * b]`` -> ``[N, b * b * C, H, W]``."""
    ctx.merged(ctx.output()[1], ctx.input(0)[1], outer=int(ctx.attr("blocksize")) ** 2)
