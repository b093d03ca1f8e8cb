"""Element by element: axes that meet are the same, apart from broadcast ones."""

from __future__ import annotations

from collections.abc import Sequence

from sift_onnx.analysis.axis_system import Axis, size_of
from sift_onnx.analysis.findings import Axes
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule
from sift_onnx.analysis.rules.stored_tables import follow_table
from sift_onnx.operators.traits import ELEMENTWISE_BINARY, ELEMENTWISE_UNARY


@axis_rule(*ELEMENTWISE_UNARY)
def unary(ctx: RuleContext) -> None:
    """One tensor in, one of the same shape out."""
    ctx.set_axes(0, ctx.axes(0))


@axis_rule("CastLike", "Clip", "ReverseSequence")
def first_input(ctx: RuleContext) -> None:
    """The first input passes; the others are a dtype, scalars, or lengths of sequences."""
    ctx.set_axes(0, ctx.axes(0))


@axis_rule("Dropout")
def dropout(ctx: RuleContext) -> None:
    """The data and the mask have the shape of the input."""
    for i in range(len(ctx.node.outputs)):
        ctx.set_axes(i, ctx.axes(0))


@axis_rule(*ELEMENTWISE_BINARY)
def binary(ctx: RuleContext) -> None:
    """All inputs are broadcast against each other."""
    operands = [ctx.axes(i) for i in range(len(ctx.node.inputs))]
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
        for axis in wide[1:]:
            ctx.equate(wide[0], axis, "they meet element by element")
        # The axis with the smallest span says most precisely where growth sits.
        grown = [axis for axis in wide if not ctx.system.resolve(axis.size).is_constant]
        result.append(min(grown or wide or [Axis(size_of(1))], key=lambda axis: axis.span))
    return tuple(result)
