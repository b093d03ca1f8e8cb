"""Reshape, Flatten, Transpose, Squeeze, Unsqueeze, Expand: where growth goes when axes are rearranged."""

from __future__ import annotations

import math

from sift_onnx.analysis.axes.reshape import reshape
from sift_onnx.analysis.axes.sizes import Axis, Size, size_of
from sift_onnx.analysis.findings import Axes, Element
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule
from sift_onnx.analysis.rules.elementwise import broadcast


@axis_rule("Reshape")
def reshape_rule(ctx: RuleContext) -> None:
    """The sizes asked for are rewritten where they are constants; ``0`` and ``-1`` follow by themselves."""
    x, target = ctx.axes(0), ctx.elements(1)
    if x is None or target is None:
        ctx.keep_sizes("it is reshaped to a computed shape")
        return
    before = [ctx.original(axis) for axis in x]
    asked: list[Element] = list(target.reshape(-1))
    copies = not ctx.attr("allowzero", 0)
    sizes = [before[i] if e.value == 0 and copies and i < len(x) else e.value for i, e in enumerate(asked)]
    if -1 in sizes:
        known = math.prod(n for n in sizes if n != -1)
        sizes[sizes.index(-1)] = math.prod(before) // known if known else 0
    if math.prod(sizes) != math.prod(before):
        ctx.pin_all(x, "its reshape does not fit")
        ctx.set_axes(0, ctx.const_axes(sizes))
        return
    from_inside = 0
    if ctx.index in ctx.analysis.head_splits:
        from_inside = 1
        if ctx.analysis.attention == "keep":
            ctx.pin_all(x, "attention keeps its heads and their size (`attention='keep'`)")
    elif ctx.analysis.whole_groups and any(reader.op == "InstanceNormalization" for reader in ctx.readers()):
        from_inside = 1
    _keep_repetitions(ctx, x, before, sizes)
    after = _explained(ctx, reshape(ctx.system, x, sizes, ctx.cause, from_inside=from_inside))
    for i, (element, axis) in enumerate(zip(asked, after, strict=True)):
        if element.value == 0 and copies:
            ctx.equate(axis, x[i], "a reshape copies this axis")
        elif element.value != -1:
            ctx.tie(element, axis.size, "a reshape states this size")
    ctx.set_axes(0, after)


def _explained(ctx: RuleContext, axes: list[Axis]) -> list[Axis]:
    """The axes after a reshape; those next to one that grows (the number of heads) know why they do not."""
    if not any(ctx.grows(axis) for axis in axes):
        return axes
    cause = ctx.cause("a reshape splits an axis into it and one that grows")
    return [Axis(ctx.system.fixed(ctx.original(a), cause)) if a.size.is_constant else a for a in axes]


def _keep_repetitions(ctx: RuleContext, x: Axes, before: list[int], sizes: list[int]) -> None:
    """Of an axis and its repetitions that are merged (heads that share keys), the axis is what grows."""
    for i in range(1, len(x)):
        if ctx.grows(x[i - 1]) and x[i].size in ctx.analysis.repeats and before[i - 1] * before[i] in sizes:
            ctx.pin(x[i], "it is a number of repetitions")


@axis_rule("Flatten")
def flatten(ctx: RuleContext) -> None:
    """``[d0, ..., dn]`` -> ``[d0 * ... * d(axis-1), d(axis) * ... * dn]``."""
    x = ctx.axes(0)
    if x is None:
        ctx.set_axes(0, ctx.inferred_axes())
        return
    axis = int(ctx.attr("axis", 1))
    axis = axis + len(x) if axis < 0 else axis
    before = [ctx.original(a) for a in x]
    front, back = math.prod(before[:axis]), math.prod(before[axis:])
    merged: list[Axis] = []
    for part, size in ((x[:axis], front), (x[axis:], back)):
        merged.extend(reshape(ctx.system, part, [size], ctx.cause) if part else [Axis(size_of(1))])
    ctx.set_axes(0, merged)


@axis_rule("Transpose")
def transpose(ctx: RuleContext) -> None:
    """Axes change places."""
    x = ctx.axes(0)
    if x is None:
        ctx.set_axes(0, ctx.inferred_axes())
        return
    perm = ctx.attr("perm") or list(range(len(x)))[::-1]
    ctx.set_axes(0, [x[p] for p in perm])


def axes_argument(ctx: RuleContext) -> list[int] | None:
    """The ``axes`` of Squeeze, Unsqueeze and reductions, an attribute or an input; [] if left out, None if computed."""
    if "axes" in ctx.node.attrs:
        return [int(a) for a in ctx.attr("axes")]
    return ctx.integers(1) if ctx.has_input(1) else []


@axis_rule("Squeeze")
def squeeze(ctx: RuleContext) -> None:
    """Axes of size 1 vanish; they must stay 1."""
    x, axes = ctx.axes(0), axes_argument(ctx)
    if x is None or axes is None:
        ctx.keep_sizes("the squeezed axes are computed")
        return
    gone = {a % len(x) for a in axes} or {i for i, axis in enumerate(x) if ctx.original(axis) == 1}
    ctx.set_axes(0, [axis for i, axis in enumerate(x) if i not in gone])


@axis_rule("Unsqueeze")
def unsqueeze(ctx: RuleContext) -> None:
    """New axes of size 1."""
    x, axes = ctx.axes(0), axes_argument(ctx)
    if x is None or axes is None:
        ctx.keep_sizes("the new axes are computed")
        return
    rank = len(x) + len(axes)
    new = {a % rank for a in axes}
    rest = iter(x)
    ctx.set_axes(0, [Axis(size_of(1)) if i in new else next(rest) for i in range(rank)])


@axis_rule("Expand")
def expand(ctx: RuleContext) -> None:
    """Broadcast to the sizes asked for; a size that nothing in the input fixes is whatever its consumers need."""
    x, target = ctx.axes(0), ctx.elements(1)
    if x is None or target is None:
        ctx.keep_sizes("it is expanded to a computed shape")
        return
    asked = list(target.reshape(-1))
    out = list(broadcast(ctx, [x, _asked_axes(ctx, asked)]))
    offset = len(out) - len(asked)
    for i, element in enumerate(asked):
        if element.leaf is not None and element.value != 1:
            ctx.tie(element, out[offset + i].size, "an expansion states this size")
    ctx.set_axes(0, out)


def _asked_axes(ctx: RuleContext, asked: list[Element]) -> Axes:
    axes: list[Axis] = []
    for element in asked:
        size: Size = element.size
        if element.leaf is not None and element.value > 1:
            size = ctx.system.variable(element.value)
            ctx.analysis.repeats.add(size)
        axes.append(Axis(size, 1, element.value if not size.is_constant else 1))
    return tuple(axes)
