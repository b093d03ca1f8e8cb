"""Concat, Pad, Tile: axes that become longer."""

from __future__ import annotations

from collections.abc import Sequence

from sift_onnx.analysis.axes.sizes import Axis, Size, size_of
from sift_onnx.analysis.findings import Elements
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule
from sift_onnx.analysis.rules.elementwise import met


@axis_rule("Concat")
def concat(ctx: RuleContext) -> None:
    """Sizes along the axis add up; all others are the same."""
    parts = [ctx.axes(i) for i in range(len(ctx.node.inputs))]
    known = [axes for axes in parts if axes is not None]
    if len(known) < len(parts):
        ctx.keep_sizes("it is joined with a tensor of unknown shape")
        return
    joined = int(ctx.attr("axis", 1)) % len(known[0])
    out: list[Axis] = []
    for position in range(len(known[0])):
        meeting = [axes[position] for axes in known]
        if position == joined:
            out.append(_joined(ctx, meeting))
            continue
        out.append(met(ctx, meeting, "they are joined along another axis"))
    ctx.set_axes(0, out)


def _joined(ctx: RuleContext, parts: Sequence[Axis]) -> Axis:
    total = sum((axis.size for axis in parts), start=size_of(0))
    original = ctx.original(total)
    strides = {axis.stride for axis in parts if ctx.grows(axis)}
    stride = strides.pop() if len(strides) == 1 else 1
    if original % stride or any(ctx.original(axis) % stride for axis in parts):
        stride = 1
    return Axis(total, stride, original // stride)


@axis_rule("Pad")
def pad(ctx: RuleContext) -> None:
    """Padding of an axis that grows grows with it (the zero-padded shortcut of CIFAR ResNets)."""
    x = ctx.axes(0)
    if x is None:
        ctx.set_axes(0, ctx.inferred_axes())
        return
    stated: Elements | None = None
    if "pads" in ctx.node.attrs:
        amounts = [int(v) for v in ctx.attr("pads")]
    else:
        stated = ctx.elements(1)
        if stated is None:
            ctx.keep_sizes("it is padded by computed amounts")
            return
        amounts = [element.value for element in stated.reshape(-1)]
    axes = list(range(len(x)))
    if ctx.has_input(3):
        chosen = ctx.integers(3)
        if chosen is None:
            ctx.keep_sizes("the padded axes are computed")
            return
        axes = [axis % len(x) for axis in chosen]
    out = list(x)
    sizes: list[Size] = [size_of(v) for v in amounts]
    for k, position in enumerate(axes):
        before, after = amounts[k], amounts[k + len(axes)]
        if not before and not after:
            continue
        whole, axis = ctx.original(x[position]), x[position]
        for j, amount in ((k, before), (k + len(axes), after)):
            sizes[j] = axis.size * amount / whole
            ctx.system.require_integer(axis.size * abs(amount) / whole)
            if stated is not None:
                ctx.tie(stated.reshape(-1)[j], sizes[j], "a padding states this amount")
        total = axis.size * (whole + before + after) / whole
        ctx.system.require_integer(total)
        out[position] = Axis(total, axis.stride, axis.span)
    if stated is None:
        ctx.set_attribute("pads", sizes)
    ctx.set_axes(0, out)


@axis_rule("Tile")
def tile(ctx: RuleContext) -> None:
    """Repeated axes are multiples; an axis of size 1 is repeated as often as its consumers need."""
    x, repeats = ctx.axes(0), ctx.elements(1)
    if x is None or repeats is None:
        ctx.keep_sizes("it is repeated a computed number of times")
        return
    out: list[Axis] = []
    for axis, element in zip(x, repeats.reshape(-1), strict=True):
        if element.value == 1:
            out.append(axis)
        elif ctx.original(axis) == 1:
            size = element.size
            if element.leaf is not None:
                size = ctx.system.variable(element.value)
                ctx.tie(element, size, "a repetition states this size")
            out.append(Axis(size, 1, element.value))
        else:
            ctx.pin(element.size, "it is a number of repetitions")
            out.append(Axis(axis.size * element.value, axis.stride, axis.span))
    ctx.set_axes(0, out)
