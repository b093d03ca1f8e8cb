"""Gemm and MatMul: the contracted axes are the same, the others pass."""

from __future__ import annotations

from sift_onnx.axes import Axis, Size
from sift_onnx.axis_rules.context import Axes, RuleContext
from sift_onnx.axis_rules.elementwise import broadcast, register_rotary
from sift_onnx.axis_rules.registry import axis_rule


@axis_rule("Gemm")
def gemm(ctx: RuleContext) -> None:
    """``a [M, K]``, ``b [K, N]`` (or transposed), ``c`` broadcast to ``[M, N]``."""
    a, b = ctx.axes(0), ctx.axes(1)
    if a is None or b is None:
        _unknown(ctx, a, b)
        return
    a_k, a_m = (0, 1) if ctx.attr("transA", 0) else (1, 0)
    b_k, b_n = (1, 0) if ctx.attr("transB", 0) else (0, 1)
    ctx.equate(a[a_k], b[b_k], "contraction")
    out = (a[a_m], b[b_n])
    c = ctx.axes(2)
    if c is not None:
        for c_axis, out_axis in zip(reversed(c), reversed(out), strict=False):
            if ctx.original(c_axis) != 1:
                ctx.equate(c_axis, out_axis, "bias")
    ctx.set_axes(0, out)
    _register(ctx, "gemm", (a[a_k], a[a_m]), (b[b_k], b[b_n]), (a_m, b_n))


@axis_rule("MatMul")
def matmul(ctx: RuleContext) -> None:
    """``a [..., M, K]``, ``b [..., K, N]``; leading axes broadcast, vectors lose their axis."""
    a, b = ctx.axes(0), ctx.axes(1)
    if a is None or b is None:
        _unknown(ctx, a, b)
        return
    k_of_b = b[-2] if len(b) > 1 else b[-1]
    ctx.equate(a[-1], k_of_b, "contraction")
    batch = broadcast(ctx, [a[:-2], b[:-2]])
    rows = (a[-2],) if len(a) > 1 else ()
    columns = (b[-1],) if len(b) > 1 else ()
    ctx.set_axes(0, (*batch, *rows, *columns))
    if not rows or not columns:
        ctx.pin(a[-1], "a product with a vector")
        return
    out_axes = len(a) - 2, len(b) - 1
    _register(ctx, "matmul", (a[-1], *rows), (k_of_b, *columns), out_axes, batch, (a[:-2], b[:-2]))


def _register(
    ctx: RuleContext,
    kind: str,
    a: tuple[Axis, Axis],
    b: tuple[Axis, Axis],
    out_axes: tuple[int, int],
    batch: Axes = (),
    own: tuple[Axes, Axes] = ((), ()),
) -> None:
    """Register the weight of a matrix product, or the product itself where both sides are activations.

    Args:
        ctx: the node.
        kind: of the weight layer.
        a: axes of the left side, the contracted one first.
        b: axes of the right side, the contracted one first.
        out_axes: positions of the other axis in both sides.
        batch: leading axes of the product.
        own: leading axes of both sides.
    """
    right, left = ctx.parameter(1), ctx.parameter(0)
    if ctx.original(a[0]) == 1 and any(register_rotary(ctx, i) for i in (0, 1)):
        return  # positions times frequencies
    if right is not None and left is None:
        ctx.weight(right, kind, out_axes[1], (*_repeated(ctx, batch, own[1]), a[1].size))
    elif left is not None and right is None:
        ctx.weight(left, kind, out_axes[0], (*_repeated(ctx, batch, own[0]), b[1].size))
    elif left is None:
        ctx.product(*(axis.size for axis in (*batch, a[1], a[0], b[1])))


def _repeated(ctx: RuleContext, batch: Axes, own: Axes) -> tuple[Size, ...]:
    """The leading axes of a product along which a side with the leading axes ``own`` is repeated."""
    first = len(batch) - len(own)
    return tuple(axis.size for i, axis in enumerate(batch) if i < first or ctx.original(own[i - first]) == 1)


def _unknown(ctx: RuleContext, *sides: tuple[Axis, ...] | None) -> None:
    for axes in sides:
        ctx.pin_all(axes, "it meets a tensor of unknown shape")
    ctx.set_axes(0, ctx.inferred_axes())
