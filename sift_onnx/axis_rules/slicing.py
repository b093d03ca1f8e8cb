"""Concat, Split, Slice, Pad, Tile: axes that are put together and taken apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sift_onnx.axes import Axis, Size, size_of
from sift_onnx.axis_rules.context import Elements, RuleContext
from sift_onnx.axis_rules.registry import axis_rule

# A cut that is not at one of this many equal parts of an axis is taken for one at a fixed place.
FINEST_CUT = 64


@axis_rule("Concat")
def concat(ctx: RuleContext) -> None:
    """Sizes along the axis add up; all others are the same."""
    parts = [ctx.axes(i) for i in range(len(ctx.node.inputs))]
    known = [axes for axes in parts if axes is not None]
    if len(known) < len(parts):
        for axes in known:
            ctx.pin_all(axes, "it is joined with a tensor of unknown shape")
        ctx.set_axes(0, ctx.inferred_axes())
        return
    joined = int(ctx.attr("axis", 1)) % len(known[0])
    out: list[Axis] = []
    for position in range(len(known[0])):
        meeting = [axes[position] for axes in known]
        if position == joined:
            out.append(_joined(ctx, meeting))
            continue
        for axis in meeting[1:]:
            ctx.equate(meeting[0], axis, "they are joined along another axis")
        grown = [axis for axis in meeting if not ctx.system.resolve(axis.size).is_constant]
        out.append(min(grown or meeting, key=lambda axis: axis.span))
    ctx.set_axes(0, out)


def _joined(ctx: RuleContext, parts: Sequence[Axis]) -> Axis:
    total = size_of(0)
    for axis in parts:
        total = total + axis.size
    original = ctx.original(total)
    strides = {axis.stride for axis in parts if not ctx.system.resolve(axis.size).is_constant}
    stride = strides.pop() if len(strides) == 1 else 1
    if original % stride or any(ctx.original(axis) % stride for axis in parts):
        stride = 1
    return Axis(total, stride, original // stride)


@axis_rule("Split")
def split(ctx: RuleContext) -> None:
    """Each part is its fraction of the whole; stated sizes are rewritten."""
    x = ctx.axes(0)
    count = len(ctx.node.outputs)
    if x is None:
        _inferred(ctx)
        return
    position = int(ctx.attr("axis", 0)) % len(x)
    whole = ctx.original(x[position])
    stated: Elements | None = None
    if "split" in ctx.node.attrs:
        sizes = [int(n) for n in ctx.attr("split")]
    elif ctx.has_input(1):
        stated = ctx.elements(1)
        if stated is None:
            ctx.pin_all(x, "it is split at computed places")
            _inferred(ctx)
            return
        sizes = [element.value for element in stated.reshape(-1)]
    else:
        part = -(-whole // count)
        sizes = [min(part, whole - i * part) for i in range(count)]
        if whole % count:
            ctx.pin(x[position], "it is split in unequal parts")
    parts = [_part(ctx, x[position], n, whole) for n in sizes]
    if "split" in ctx.node.attrs:
        ctx.set_attribute("split", [part.size for part in parts])
    for element, axis in zip([] if stated is None else stated.reshape(-1), parts, strict=False):
        ctx.tie(element, axis.size, "a split states this size")
    for i, axis in enumerate(parts):
        ctx.set_axes(i, [axis if j == position else other for j, other in enumerate(x)])


def _part(ctx: RuleContext, axis: Axis, n: int, whole: int) -> Axis:
    """The axis of a part with ``n`` of ``whole`` elements."""
    if ctx.system.resolve(axis.size).is_constant:
        return Axis(size_of(n))
    if n == whole:
        return axis
    if whole // math.gcd(n, whole) > FINEST_CUT:
        ctx.pin(axis, "it is cut at a fixed place")
        return Axis(size_of(n))
    size = axis.size * n / whole
    ctx.system.require_integer(size)
    # A cut between repetitions of the carrier leaves it as it is; a cut through it shortens it.
    period = axis.stride * axis.span
    if n % period == 0 or period % n:
        return Axis(size, axis.stride, axis.span)
    return Axis(size, min(axis.stride, n), max(1, min(axis.span, n // min(axis.stride, n))))


@axis_rule("Slice")
def slice_rule(ctx: RuleContext) -> None:
    """A part of an axis keeps its fraction; where it starts and ends is rewritten."""
    x = ctx.axes(0)
    if x is None:
        ctx.set_axes(0, ctx.inferred_axes())
        return
    arguments = _slice_arguments(ctx, len(x))
    if arguments is None:
        ctx.pin_all(x, "it is sliced at computed places")
        ctx.set_axes(0, ctx.inferred_axes())
        return
    starts, ends, axes, steps = arguments
    out = list(x)
    for k, position in enumerate(axes):
        axis, step = x[position], steps[k]
        whole = ctx.original(axis)
        start, stop, stride = slice(starts[k].value, _end(ends[k].value, step, whole), step).indices(whole)
        length = len(range(start, stop, stride))
        if length == whole and step == 1:
            continue
        if ctx.system.resolve(axis.size).is_constant:
            out[position] = Axis(size_of(length))
            continue
        if length == whole and step == -1:
            continue
        if step != 1 or length <= 1:
            ctx.pin(axis, "single elements of it are picked")
            out[position] = Axis(size_of(length))
            continue
        out[position] = _part(ctx, axis, length, whole)
        if math.lcm(whole // math.gcd(start, whole), whole // math.gcd(stop, whole)) > FINEST_CUT:
            ctx.pin(axis, "it is cut at a fixed place")
            continue
        for bound, place in ((starts[k], start), (ends[k], stop)):
            if bound.value == 0 or bound.value >= whole:
                continue  # the beginning, or "to the end"
            offset = place if bound.value >= 0 else place - whole
            ctx.system.require_integer(axis.size * offset / whole)
            bound.rewrite(axis.size * offset / whole)
    ctx.set_axes(0, out)


def _end(end: int, step: int, whole: int) -> int | None:
    return None if step < 0 and end < -whole else end


@dataclass(frozen=True)
class _Bound:
    """One start or end: its value, and where it can be rewritten."""

    value: int
    rewrite: Callable[[Size], None]


def _slice_arguments(ctx: RuleContext, rank: int) -> tuple[list[_Bound], list[_Bound], list[int], list[int]] | None:
    """Starts, ends, axes and steps; None where one is computed."""
    if "starts" in ctx.node.attrs:
        starts, ends = (_attribute_bounds(ctx, name) for name in ("starts", "ends"))
        axes = [int(a) % rank for a in ctx.attr("axes", range(len(starts)))]
        return starts, ends, axes, [1] * len(axes)
    tracked = [ctx.elements(i) if ctx.has_input(i) else None for i in range(1, 5)]
    if tracked[0] is None or tracked[1] is None:
        return None
    if any(elements is None and ctx.has_input(i + 1) for i, elements in enumerate(tracked)):
        return None

    starts, ends = (_element_bounds(ctx, elements) for elements in tracked[:2] if elements is not None)
    axes = [e.value % rank for e in tracked[2].reshape(-1)] if tracked[2] is not None else list(range(len(starts)))
    steps = [e.value for e in tracked[3].reshape(-1)] if tracked[3] is not None else [1] * len(starts)
    return starts, ends, axes, steps


def _attribute_bounds(ctx: RuleContext, name: str) -> list[_Bound]:
    values = [int(v) for v in ctx.attr(name)]
    sizes = [size_of(v) for v in values]

    def rewrite(k: int, size: Size) -> None:
        sizes[k] = size
        ctx.set_attribute(name, sizes)

    return [_Bound(value, partial(rewrite, k)) for k, value in enumerate(values)]


def _element_bounds(ctx: RuleContext, elements: Elements) -> list[_Bound]:
    reason = "a slice states this place"
    return [_Bound(e.value, partial(ctx.tie, e, reason=reason)) for e in elements.reshape(-1)]


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
            ctx.pin_all(x, "it is padded by computed amounts")
            ctx.set_axes(0, ctx.inferred_axes())
            return
        amounts = [element.value for element in stated.reshape(-1)]
    axes = list(range(len(x)))
    if ctx.has_input(3):
        chosen = ctx.elements(3)
        if chosen is None:
            ctx.pin_all(x, "the padded axes are computed")
            ctx.set_axes(0, ctx.inferred_axes())
            return
        axes = [element.value % len(x) for element in chosen.reshape(-1)]
    out = list(x)
    sizes: list[Size] = [size_of(v) for v in amounts]
    for k, position in enumerate(axes):
        before, after = amounts[k], amounts[k + len(axes)]
        if not before and not after:
            continue
        whole, axis = ctx.original(x[position]), x[position]
        for j, amount in ((k, before), (k + len(axes), after)):
            sizes[j] = axis.size * amount / whole
            ctx.system.require_integer(sizes[j])
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
        ctx.pin_all(x, "it is repeated a computed number of times")
        ctx.set_axes(0, ctx.inferred_axes())
        return
    out: list[Axis] = []
    for i, (axis, element) in enumerate(zip(x, repeats.reshape(-1), strict=True)):
        if element.value == 1:
            out.append(axis)
        elif ctx.original(axis) == 1:
            size = element.size
            if element.leaf is not None:
                size = ctx.system.variable(element.value, f"{ctx.label} repeats[{i}]")
                ctx.tie(element, size, "a repetition states this size")
            out.append(Axis(size, 1, element.value))
        else:
            ctx.pin(element.size, "it is a number of repetitions")
            out.append(Axis(axis.size * element.value, axis.stride, axis.span))
    ctx.set_axes(0, out)


def _inferred(ctx: RuleContext) -> None:
    for i in range(len(ctx.node.outputs)):
        ctx.set_axes(i, ctx.inferred_axes(i))
