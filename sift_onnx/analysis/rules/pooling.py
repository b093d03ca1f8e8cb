"""Pooling and reductions: batch and channels pass, spatial sizes come from the original."""

from __future__ import annotations

from sift_onnx.analysis.axes.sizes import Axis, size_of
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule
from sift_onnx.analysis.rules.layout import axes_argument


@axis_rule("AveragePool", "MaxPool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def pool(ctx: RuleContext) -> None:
    """``[N, C, ...]`` -> ``[N, C, ...]`` with other spatial sizes, which must not depend on what grows."""
    x, shape = ctx.axes(0), ctx.output_shape()
    if x is None or shape is None or any(n is None for n in shape[2:]):
        ctx.keep_sizes("the size of the pooled tensor is unknown")
        return
    ctx.pin_all(x[2:], "a pooling window slides over it")
    axes = (*x[:2], *ctx.const_axes([n for n in shape[2:] if n is not None], "it is a spatial size"))
    for i in range(len(ctx.node.outputs)):
        ctx.set_axes(i, axes)


@axis_rule(
    *(f"Reduce{name}" for name in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()), "ArgMax", "ArgMin"
)
def reduce(ctx: RuleContext) -> None:
    """Reduced axes become 1 or vanish; what is averaged over may grow."""
    x = ctx.axes(0)
    finds = ctx.node.op.startswith("Arg")
    axes = [int(ctx.attr("axis", 0))] if finds else axes_argument(ctx)
    if x is None or axes is None:
        ctx.keep_sizes("the reduced axes are computed")
        return
    if not axes and not ctx.attr("noop_with_empty_axes", 0):
        axes = list(range(len(x)))
    reduced = {a % len(x) for a in axes}
    for i in reduced if finds else ():
        ctx.pin(x[i], "its index is an output")
    if ctx.attr("keepdims", 1):
        ctx.set_axes(0, [Axis(size_of(1)) if i in reduced else axis for i, axis in enumerate(x)])
    else:
        ctx.set_axes(0, [axis for i, axis in enumerate(x) if i not in reduced])
