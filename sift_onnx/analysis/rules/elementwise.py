"""Element by element: axes that meet are the same, apart from broadcast ones."""

from __future__ import annotations

from collections.abc import Sequence

from sift_onnx.analysis.axes.sizes import Axis, size_of
from sift_onnx.analysis.findings import Axes
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule
from sift_onnx.analysis.rules.stored_tables import follow_table
from sift_onnx.operators.traits import ELEMENTWISE_BINARY, ELEMENTWISE_UNARY


@axis_rule(*ELEMENTWISE_UNARY)
def unary(ctx: RuleContext) -> None:
    """One tensor in, one of the same shape out."""
    ctx.set_axes(0, ctx.axes(0))


# The other inputs are a dtype, scalars, or lengths of sequences.
axis_rule("CastLike", "Clip", "ReverseSequence")(unary)


@axis_rule("Dropout")
def dropout(ctx: RuleContext) -> None:
    """The data and the mask have the shape of the input."""
    for i in range(len(ctx.node.outputs)):
        ctx.set_axes(i, ctx.axes(0))


@axis_rule(*ELEMENTWISE_BINARY)
def binary(ctx: RuleContext) -> None:
    """All inputs are broadcast against each other."""
    operands = [ctx.axes(i) for i in range(len(ctx.node.inputs)) if ctx.has_input(i)]
    known = [axes for axes in operands if axes is not None]
    if len(known) < len(operands):
        ctx.keep_sizes("it meets a tensor of unknown shape")
        return
    ctx.set_axes(0, broadcast(ctx, known))
    if ctx.node.op == "Mul":
        for i in (0, 1):
            follow_table(ctx, i)


def broadcast(ctx: RuleContext, operands: Sequence[Sequence[Axis]]) -> Axes:
    """The axes of ``operands`` after broadcasting, aligned at the right; axes of size 1 give way."""
    rank = max(len(axes) for axes in operands)
    result: list[Axis] = []
    for position in range(-rank, 0):
        meeting = [axes[position] for axes in operands if len(axes) >= -position]
        wide = [axis for axis in meeting if ctx.original(axis) != 1]
        result.append(met(ctx, wide, "they meet element by element") if wide else Axis(size_of(1)))
    return tuple(result)


def met(ctx: RuleContext, axes: Sequence[Axis], reason: str) -> Axis:
    """Say that some axes are the same; the one of them that says most precisely where growth sits."""
    for axis in axes[1:]:
        ctx.equate(axes[0], axis, reason)
    grown = [axis for axis in axes if ctx.grows(axis)]
    return min(grown or axes, key=lambda axis: axis.span)
