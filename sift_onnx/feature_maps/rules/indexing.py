"""Gather and its kin: an axis that indices point into keeps its size, the others pass."""

from __future__ import annotations

from sift_onnx.feature_maps.context import FeatureMapContext
from sift_onnx.feature_maps.registry import feature_map_rule


@feature_map_rule("Gather")
def gather(ctx: FeatureMapContext) -> None:
    """``data[..., d, ...]`` at ``indices`` -> ``data`` with ``d`` replaced by the axes of ``indices``."""
    data, indices, out = ctx.input(0), ctx.input(1), ctx.output()
    position = int(ctx.attr("axis", 0)) % len(data)
    ctx.require_fixed((data[position], *indices), "picks elements of")
    ctx.same_axes((*data[:position], *indices, *data[position + 1 :]), out)


@feature_map_rule("GatherND")
def gather_nd(ctx: FeatureMapContext) -> None:
    """``indices [..., r]`` point into the first ``r`` axes of ``data`` after the batch axes."""
    data, indices = ctx.input(0), ctx.input(1)
    indexed = int(ctx.attr("batch_dims", 0)) + indices[-1].old
    ctx.require_fixed((*data[:indexed], *indices), "picks elements of")
    ctx.same_axes((*indices[:-1], *data[indexed:]), ctx.output())


@feature_map_rule("ScatterND")
def scatter_nd(ctx: FeatureMapContext) -> None:
    """``updates [..., *data[r:]]`` replace or change slices of ``data`` that ``indices [..., r]`` point at."""
    data, indices, updates = ctx.input(0), ctx.input(1), ctx.input(2)
    indexed = indices[-1].old
    ctx.require_fixed((*data[:indexed], *indices), "writes elements of")
    ctx.same_axes(updates[len(indices) - 1 :], data[indexed:])
    ctx.same_axes(data, ctx.output())
