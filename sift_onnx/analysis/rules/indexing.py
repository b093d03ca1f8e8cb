"""Gather, Scatter and their kin: an axis that indices point into keeps its size."""

from __future__ import annotations

from sift_onnx.analysis.axes.sizes import Axis, size_of
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule
from sift_onnx.analysis.rules.stored_tables import is_table


@axis_rule("Gather")
def gather(ctx: RuleContext) -> None:
    """``data[..., d, ...]`` at ``indices`` -> ``data`` with ``d`` replaced by the axes of ``indices``.

    A stored table that rows are looked up in is an embedding.
    """
    data, indices = ctx.axes(0), ctx.axes(1)
    if data is None or indices is None:
        ctx.keep_sizes("it is indexed by a tensor of unknown shape")
        return
    position = int(ctx.attr("axis", 0)) % len(data)
    flat = len(data) == 1 and len(indices) > 1
    ctx.pin(data[position], "flat indices point into it (torch's as_strided)" if flat else "indices point into it")
    ctx.set_axes(0, (*data[:position], *indices, *data[position + 1 :]))
    parameter = ctx.parameter(0)
    if parameter is not None and len(data) == 2 and position == 0 and not is_table(ctx, parameter[0]):
        # A look-up copies; it multiplies nothing. What is looked up is an activation, even at constant places: relative
        # positions, say, whose product with queries is a part of the scores.
        ctx.weight(parameter, "embedding", 1, (size_of(0),))
        ctx.analysis.derived.discard(ctx.node.outputs[0].name)


@axis_rule("GatherElements")
def gather_elements(ctx: RuleContext) -> None:
    """The output has the shape of ``indices``, whose values are computed for these sizes."""
    ctx.pin_all(ctx.axes(0), "indices point into it, element by element")
    ctx.set_axes(0, ctx.axes(1))


@axis_rule("GatherND")
def gather_nd(ctx: RuleContext) -> None:
    """``indices [..., r]`` point into the first ``r`` axes of ``data`` after the batch axes."""
    data, indices = ctx.axes(0), ctx.axes(1)
    if data is None or indices is None:
        ctx.keep_sizes("it is indexed by a tensor of unknown shape")
        return
    batch = int(ctx.attr("batch_dims", 0))
    depth = ctx.original(indices[-1])
    ctx.pin_all(data[: batch + depth], "indices point into it")
    ctx.set_axes(0, (*indices[:-1], *data[batch + depth :]))


@axis_rule("ScatterND")
def scatter_nd(ctx: RuleContext) -> None:
    """``updates [..., *data[r:]]`` replace slices of ``data`` that ``indices [..., r]`` point at."""
    data, indices, updates = ctx.axes(0), ctx.axes(1), ctx.axes(2)
    if data is None or indices is None or updates is None:
        ctx.pin_all(data, "it is written through indices of unknown shape")
        ctx.pin_all(updates, "it is written through indices of unknown shape")
        ctx.set_axes(0, data)
        return
    depth = ctx.original(indices[-1])
    ctx.pin_all(data[:depth], "indices point into it")
    for axis, other in zip(updates[len(indices) - 1 :], data[depth:], strict=True):
        ctx.equate(axis, other, "one is written into the other")
    ctx.set_axes(0, data)


@axis_rule("ScatterElements", "Scatter")
def scatter_elements(ctx: RuleContext) -> None:
    """Indices and updates have one shape and point into ``data``."""
    for i in (0, 2):
        ctx.pin_all(ctx.axes(i), "indices point into it, element by element")
    ctx.set_axes(0, ctx.axes(0))


@axis_rule("TopK")
def top_k(ctx: RuleContext) -> None:
    """The axis that is sorted keeps its size, and so does the number that is taken."""
    x = ctx.axes(0)
    if x is None:
        ctx.keep_sizes("it belongs to a tensor of unknown shape")
        return
    position = int(ctx.attr("axis", -1)) % len(x)
    ctx.pin(x[position], "its largest elements are picked")
    shape = ctx.output_shape()
    taken = shape[position] if shape is not None and shape[position] is not None else ctx.original(x[position])
    for i in range(len(ctx.node.outputs)):
        ctx.set_axes(i, [Axis(size_of(taken or 1)) if j == position else axis for j, axis in enumerate(x)])


@axis_rule("Range", "OneHot", "NonZero", "EyeLike", "Compress", "Unique", "NonMaxSuppression", "AffineGrid")
def fixed(ctx: RuleContext) -> None:
    """What is made here is fixed, and so is what it is made of."""
    ctx.fix_node(f"{ctx.node.op} depends on it")


@axis_rule("ConstantOfShape")
def constant_of_shape(ctx: RuleContext) -> None:
    """A filled tensor of a shape that is stated; sizes that are constants can be rewritten."""
    asked = ctx.elements(0)
    if asked is None:
        ctx.set_axes(0, ctx.inferred_axes())
        return
    out: list[Axis] = []
    for element in asked.reshape(-1):
        size = element.size
        if element.leaf is not None and element.value > 1:
            size = ctx.system.variable(element.value)
            ctx.tie(element, size, "a filled tensor has this size")
        out.append(Axis(size, 1, element.value))
    ctx.set_axes(0, out)
