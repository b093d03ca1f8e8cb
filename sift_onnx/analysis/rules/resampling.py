"""Resize, DepthToSpace and other ways to change spatial sizes."""

from __future__ import annotations

import math
from collections.abc import Callable

from sift_onnx.analysis.axes.sizes import Axis
from sift_onnx.analysis.findings import Elements
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule


@axis_rule("Resize", "Upsample")
def resize(ctx: RuleContext) -> None:
    """Axes that keep their size pass; those that change keep the sizes of the original."""
    stretched = ctx.attr("keep_aspect_ratio_policy", "stretch") == "stretch"
    cropped = ctx.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
    scales = _scales(ctx)
    sizes = ctx.elements(3) if stretched else None
    known = scales is not None or sizes is not None

    def passes(i: int, k: int | None) -> bool:
        # Where the factors are computed, batch and channels are trusted to have the factor 1 that they seem to have.
        return not cropped and (i < 2 or known) and (k is None or scales is None or scales[k] == 1)

    _resample(ctx, sizes, passes)


@axis_rule("CenterCropPad")
def center_crop_pad(ctx: RuleContext) -> None:
    """Axes that keep their size pass; those that change keep the sizes of the original."""
    sizes = ctx.elements(1)
    _resample(ctx, sizes, lambda _, k: k is None or sizes is not None)


def _resample(ctx: RuleContext, sizes: Elements | None, passes: Callable[[int, int | None], bool]) -> None:
    """The output of an operator that states sizes of some axes.

    Args:
        ctx: the node.
        sizes: what it states, if that is known.
        passes: whether axis ``i``, which is the ``k``-th of those that are stated, may grow if it keeps its size.
    """
    x, shape = ctx.axes(0), ctx.output_shape()
    if x is None or shape is None or len(shape) != len(x) or any(n is None for n in shape):
        ctx.keep_sizes("the size that it is resampled to is unknown")
        return
    listed = [int(axis) % len(x) for axis in ctx.attr("axes") or range(len(x))]
    out = list(x)
    for i, n in enumerate(shape):
        k = listed.index(i) if i in listed else None
        if n != ctx.original(x[i]) or not passes(i, k):
            ctx.pin(x[i], "it is resampled")
            (out[i],) = ctx.const_axes([n or 0], "it is a spatial size")
        if sizes is not None and k is not None:
            element = sizes.reshape(-1)[k]
            if ctx.grows(out[i]):
                ctx.tie(element, out[i].size, "a resize states this size")
            else:
                ctx.pin(element.size, "it is a size that something is resampled to")
    ctx.set_axes(0, out)


def _scales(ctx: RuleContext) -> list[float] | None:
    """The factors of a Resize or Upsample, if they are known; None where it is given sizes.

    Factors that are computed stay what they are, and so do the sizes that they are computed from.
    """
    if "scales" in ctx.node.attrs:
        return [float(scale) for scale in ctx.attr("scales")]
    position = 1 if ctx.node.op == "Upsample" or ctx.opset < 11 else 2
    scales = ctx.numbers(position)
    if scales is None:
        return None
    ctx.fix(scales, "it is computed into the factor of a resize")
    return [float(scale.value) for scale in scales.reshape(-1)] or None


@axis_rule("GridSample")
def grid_sample(ctx: RuleContext) -> None:
    """``x [N, C, ...]`` and a grid ``[N, ..., rank]`` of places -> ``[N, C, ...]`` with the pixels of the grid."""
    x, grid = ctx.axes(0), ctx.axes(1)
    if x is None or grid is None:
        ctx.keep_sizes("it is sampled at places of unknown shape")
        return
    ctx.pin_all(x[2:], "it is sampled at places of its own pixels")
    ctx.set_axes(0, (*x[:2], *grid[1:-1]))


@axis_rule("Col2Im")
def col2im(ctx: RuleContext) -> None:
    """``x [N, C * pixels of a block, blocks]`` -> ``[N, C, ...]``."""
    x, block, image = ctx.axes(0), ctx.elements(2), ctx.elements(1)
    if x is None or block is None or image is None:
        ctx.keep_sizes("the size of its image is computed")
        return
    ctx.pin(x[2], "its blocks are laid into an image")
    for elements in (block, image):
        ctx.fix(elements, "it is the size of an image")
    size = x[1].size / math.prod(element.value for element in block.reshape(-1))
    ctx.system.require_integer(size)
    pixels = ctx.const_axes([element.value for element in image.reshape(-1)], "it is a spatial size")
    ctx.set_axes(0, (x[0], Axis(size, 1, ctx.original(size)), *pixels))


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
        ctx.keep_sizes("its spatial size is unknown")
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
