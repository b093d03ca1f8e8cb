"""Gemm and MatMul: the contracted axes are the same, the others pass."""

from __future__ import annotations

from sift_onnx.axes import Axis, Size
from sift_onnx.axis_rules.context import RuleContext
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
    rows, columns = (a[a_m].size,), (b[b_n].size,)
    _register(ctx, "gemm", rows, (a[a_k], a[a_m]), (b[b_k], b[b_n]), (a_m, b_n), left=columns, right=rows)


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
    positions = tuple(axis.size for axis in (*batch, *rows))
    row_axis = rows[0] if rows else None
    column_axis = columns[0] if columns else None
    if row_axis is None or column_axis is None:
        ctx.pin(a[-1], "a product with a vector")
        return
    _register(
        ctx,
        "matmul",
        positions,
        (a[-1], row_axis),
        (k_of_b, column_axis),
        (len(a) - 2, len(b) - 1),
        left=(*_outside(ctx, batch, a[:-2]), column_axis.size),
        right=(*_outside(ctx, batch, b[:-2]), row_axis.size),
    )


def _outside(ctx: RuleContext, batch: Sequence[Axis], own: Sequence[Axis]) -> tuple[Size, ...]:
    """The leading axes of a product that an operand with the leading axes ``own`` is repeated along."""
    first = len(batch) - len(own)
    return tuple(a.size for i, a in enumerate(batch) if i < first or ctx.original(own[i - first]) == 1)


def _register(
    ctx: RuleContext,
    kind: str,
    positions: tuple[Size, ...],
    a: tuple[Axis, Axis],
    b: tuple[Axis, Axis],
    out_axes: tuple[int, int],
    left: tuple[Size, ...],
    right: tuple[Size, ...],
) -> None:
    """Register the weight of a matrix product, or the product itself where both sides are activations."""
    right, left = ctx.parameter(1), ctx.parameter(0)
    if ctx.original(a[0]) == 1 and any(register_rotary(ctx, i) for i in (0, 1)):
        return  # positions times frequencies
    if right is not None and left is None:
        ctx.weight(right, kind, out_axes[1], positions)
    elif left is not None and right is None:
        ctx.weight(left, kind, out_axes[0], tuple(axis.size for axis in (*batch, b[1])))
    elif left is None:
        ctx.product(*positions, a[0].size, b[1].size)


def _unknown(ctx: RuleContext, *sides: tuple[Axis, ...] | None) -> None:
    for axes in sides:
        ctx.pin_all(axes, "it meets a tensor of unknown shape")
    ctx.set_axes(0, ctx.inferred_axes())
