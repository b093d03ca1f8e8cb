"""Gemm, MatMul and their fusions: the contracted axes are the same, the others pass."""

from __future__ import annotations

from dataclasses import dataclass

from sift_onnx.analysis.axes.sizes import Axis, Size
from sift_onnx.analysis.findings import Axes
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule
from sift_onnx.analysis.rules.elementwise import broadcast
from sift_onnx.analysis.rules.stored_tables import follow_frequencies
from sift_onnx.operators.domains import MICROSOFT
from sift_onnx.operators.weight_operands import feature_axes

_UNKNOWN = "it meets a tensor of unknown shape"


@dataclass(frozen=True)
class _Side:
    """One operand of a product.

    Attributes:
        summed: the contracted axis.
        kept: the axis that goes into the output.
        position: of ``kept`` in the operand.
        batch: leading axes.
    """

    summed: Axis
    kept: Axis
    position: int
    batch: Axes


@axis_rule("FusedGemm", domain=MICROSOFT)  # followed by an activation
@axis_rule("Gemm")
def gemm(ctx: RuleContext) -> None:
    """``a [M, K]``, ``b [K, N]`` (or transposed), ``c`` broadcast to ``[M, N]``."""
    a, b = ctx.axes(0), ctx.axes(1)
    if a is None or b is None:
        ctx.keep_sizes(_UNKNOWN)
        return
    out = _product(ctx, a, b, "gemm")
    for c_axis, out_axis in zip(reversed(ctx.axes(2) or ()), reversed(out), strict=False):
        if ctx.original(c_axis) != 1:
            ctx.equate(c_axis, out_axis, "bias")


@axis_rule("MatMul")
def matmul(ctx: RuleContext) -> None:
    """``a [..., M, K]``, ``b [..., K, N]``; leading axes broadcast, vectors lose their axis."""
    a, b = ctx.axes(0), ctx.axes(1)
    if a is None or b is None:
        ctx.keep_sizes(_UNKNOWN)
    elif len(a) == 1 or len(b) == 1:
        ctx.equate(a[-1], b[-2] if len(b) > 1 else b[-1], "contraction")
        ctx.pin(a[-1], "a product with a vector")
        ctx.set_axes(0, (*a[:-1], *b[:-2], *(b[-1:] if len(b) > 1 else ())))
    else:
        _product(ctx, a, b, "matmul")


@axis_rule("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(ctx: RuleContext) -> None:
    """A MatMul times ``alpha`` whose last two axes may be transposed on either side."""
    a, b = ctx.axes(0), ctx.axes(1)
    if a is None or b is None:
        ctx.keep_sizes(_UNKNOWN)
    elif len(a) == 1 or len(b) == 1 or ctx.attr("transBatchA", 0) or ctx.attr("transBatchB", 0):
        ctx.keep_sizes("this layout of a FusedMatMul is not covered")
    else:
        _product(ctx, a, b, "matmul")


def _product(ctx: RuleContext, a: Axes, b: Axes, kind: str) -> tuple[Axis, ...]:
    """State the product of two matrices, or of stacks of them, and say what is a weight in it; the output's axes."""
    left, right = _side(ctx, 0, a), _side(ctx, 1, b)
    ctx.equate(left.summed, right.summed, "contraction")
    batch = broadcast(ctx, [left.batch, right.batch])
    out = (*batch, left.kept, right.kept)
    ctx.set_axes(0, out)
    weights = ctx.parameter(0), ctx.parameter(1)
    if ctx.original(left.summed) == 1 and any(follow_frequencies(ctx, i) for i in (0, 1)):
        return out  # positions times frequencies
    for own, other, parameter, opposite in ((left, right, *weights), (right, left, *reversed(weights))):
        if parameter is not None and opposite is None:
            ctx.pin_all(_unmatched(ctx, own.batch, other.batch), "a stack of weights keeps their number")
            ctx.weight(parameter, kind, own.position, (*_repeated(ctx, batch, own.batch), other.kept.size))
            return out
    derived = [ctx.is_derived(i) for i in (0, 1)]
    for i, side in enumerate((left, right)):
        if derived[i] and weights[i] is None:
            ctx.pin_all((side.summed, side.kept), "the weight is computed, not stored")
    if not any(derived):
        factors = (axis.size for axis in (*batch, left.kept, left.summed, right.kept))
        ctx.product(*factors, summed=left.summed.size)
    return out


def _side(ctx: RuleContext, i: int, axes: Axes) -> _Side:
    """Input ``i``, a matrix or a stack of them."""
    features = feature_axes(ctx.node.op, ctx.node.attrs, i, len(axes))
    assert features is not None
    kept, summed = features
    return _Side(axes[summed], axes[kept], kept, axes[:-2])


def _repeated(ctx: RuleContext, batch: Axes, own: Axes) -> tuple[Size, ...]:
    """The leading axes of a product along which a side with the leading axes ``own`` is repeated."""
    return tuple(axis.size for axis in _unmatched(ctx, batch, own))


def _unmatched(ctx: RuleContext, own: Axes, other: Axes) -> Axes:
    """The leading axes of a side along which the other side is repeated."""
    first = len(own) - len(other)
    return tuple(axis for i, axis in enumerate(own) if i < first or ctx.original(other[i - first]) == 1)
