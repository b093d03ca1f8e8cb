"""Operators that rearrange, join and part axes."""

from __future__ import annotations

import math

from sift_onnx.analysis.axes.reshape import aligned_groups
from sift_onnx.feature_maps.context import FeatureMapContext, product
from sift_onnx.feature_maps.registry import feature_map_rule


@feature_map_rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(ctx: FeatureMapContext) -> None:
    """Within a group of axes of equal product, the one that grows goes over into the one that grows."""
    x, out = ctx.input(0), ctx.output()
    for left, right in aligned_groups([axis.old for axis in x], [axis.old for axis in out]):
        before, after = [x[i] for i in left], [out[i] for i in right]
        source, target = ctx.only_growing(before), ctx.only_growing(after)
        if source is None or target is None:
            if source is not target:
                ctx.refuse("merges or splits axes in a way that has no place for growth")
            continue
        total = ctx.free(product(before), math.prod(axis.new for axis in before))
        for axis, group in ((source, before), (target, after)):
            i = group.index(axis)
            ctx.merged(total, axis, outer=product(group[:i]), inner=product(group[i + 1 :]))


@feature_map_rule("Transpose")
def transpose(ctx: FeatureMapContext) -> None:
    """Axes change places."""
    x = ctx.input(0)
    perm = ctx.attr("perm") or range(len(x))[::-1]
    ctx.same_axes([x[p] for p in perm], ctx.output())


@feature_map_rule("Expand")
def expand(ctx: FeatureMapContext) -> None:
    """What is repeated lies anywhere."""
    ctx.broadcast(ctx.input(0), ctx.output())


@feature_map_rule("ConstantOfShape")
def filled(ctx: FeatureMapContext) -> None:
    """One value throughout lies anywhere."""


@feature_map_rule("Concat")
def concat(ctx: FeatureMapContext) -> None:
    """Axes are joined along ``axis``, and the same along all others."""
    out = ctx.output()
    joined = int(ctx.attr("axis", 1)) % len(out)
    parts = [ctx.input(i) for i in range(len(ctx.node.inputs))]
    ctx.joined(out[joined], [part[joined] for part in parts])
    for part in parts:
        ctx.same_but(joined, part, out)


@feature_map_rule("Split")
def split(ctx: FeatureMapContext) -> None:
    """An axis is parted along ``axis``; all others are the same."""
    x = ctx.input(0)
    cut = int(ctx.attr("axis", 0)) % len(x)
    parts = [ctx.output(i) for i in range(len(ctx.node.outputs))]
    ctx.joined(x[cut], [part[cut] for part in parts])
    for part in parts:
        ctx.same_but(cut, x, part)


@feature_map_rule("Slice")
def slice_rule(ctx: FeatureMapContext) -> None:
    """A part keeps its fraction of an axis that grows, and so does what lies before it."""
    for i, (axis, part) in enumerate(zip(ctx.input(0), ctx.output(), strict=True)):
        if not axis.grows:
            continue
        start = ctx.slice_start(i)
        if start is None:
            ctx.refuse("slices at computed places")
        before = start * axis.new
        if before % axis.old:
            ctx.refuse(f"slices an axis that grows from {axis.old} to {axis.new} at no whole place")
        rest = axis.new - before // axis.old - part.new
        ctx.joined(axis, [ctx.free(start, before // axis.old), part, ctx.free(axis.old - start - part.old, rest)])


@feature_map_rule("Pad")
def pad(ctx: FeatureMapContext) -> None:
    """Zeros are joined to an axis at both ends."""
    x, out = ctx.input(0), ctx.output()
    pads = [int(n) for n in ctx.attr("pads")] if "pads" in ctx.node.attrs else ctx.integers(1)
    chosen = ctx.integers(3) or range(len(x))
    if pads is None:
        ctx.refuse("pads by computed amounts")
    amounts = {int(axis) % len(x): pads[k] for k, axis in enumerate(chosen)}
    for i, (axis, whole) in enumerate(zip(x, out, strict=True)):
        if not axis.grows:
            continue
        if (axis.old, axis.new) == (whole.old, whole.new):
            ctx.same(axis, whole)
            continue
        first = amounts[i]
        if ctx.attr("mode", "constant") != "constant" or first < 0 or whole.old - axis.old - first < 0:
            ctx.refuse("crops, reflects or repeats features of an axis that grows")
        before = first * axis.new // axis.old
        ends = ctx.free(first, before), ctx.free(whole.old - axis.old - first, whole.new - axis.new - before)
        ctx.joined(whole, [ends[0], axis, ends[1]])


@feature_map_rule("Tile")
def tile(ctx: FeatureMapContext) -> None:
    """A tiled axis is joined to itself."""
    for axis, whole in zip(ctx.input(0), ctx.output(), strict=True):
        if axis.old != 1 and axis.grows:
            ctx.joined(whole, [axis] * (whole.old // axis.old))
