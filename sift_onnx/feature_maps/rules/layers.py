"""Conv, Gemm, MatMul and their kin: what is added to a stored weight is pruned, so that old features see old ones."""

from __future__ import annotations

from sift_onnx.feature_maps.context import FeatureMapContext
from sift_onnx.feature_maps.findings import Extent
from sift_onnx.feature_maps.registry import feature_map_rule
from sift_onnx.operators.domains import MICROSOFT
from sift_onnx.operators.einsum_terms import einsum_terms


@feature_map_rule("Conv")
def conv(ctx: FeatureMapContext) -> None:
    """``x [N, C, ...]``, ``w [O, C / group, ...]``, ``bias [O]`` -> ``[N, O, ...]``."""
    x, w, out = ctx.input(0), ctx.input(1), ctx.output()
    if not ctx.has_weight:
        ctx.require_fixed(x[1:2], "sums products of activations over")
    group = int(ctx.attr("group", 1))
    if group > 1 and group == x[1].old:
        ctx.merged(w[0], x[1], inner=w[0].old // group)
    else:
        ctx.merged(x[1], w[1], outer=group)
        _parted(ctx, w[0], group)
    _finish(ctx, x, w[0], out)


@feature_map_rule("FusedConv", domain=MICROSOFT)
def fused_conv(ctx: FeatureMapContext) -> None:
    """A Conv followed by an activation, to which a fourth input may be added."""
    conv(ctx)
    ctx.broadcast(ctx.input(3), ctx.output())


@feature_map_rule("ConvTranspose")
def conv_transpose(ctx: FeatureMapContext) -> None:
    """``x [N, C, ...]``, ``w [C, O / group, ...]``, ``bias [O]`` -> ``[N, O, ...]``."""
    x, w, out = ctx.input(0), ctx.input(1), ctx.output()
    if not ctx.has_weight:
        ctx.require_fixed(x[1:2], "sums products of activations over")
    group = int(ctx.attr("group", 1))
    ctx.same(x[1], w[0])
    if group > 1 and group == x[1].old:
        ctx.merged(out[1], x[1], inner=w[1].old)
    else:
        _parted(ctx, x[1], group)
        ctx.merged(out[1], w[1], outer=group)
    _finish(ctx, x, out[1], out)


def _parted(ctx: FeatureMapContext, axis: Extent, group: int) -> None:
    """The features of each group stay in it."""
    ctx.joined(axis, [ctx.free(axis.old // group, axis.new // group) for _ in range(group)])


def _finish(ctx: FeatureMapContext, x: tuple[Extent, ...], features: Extent, out: tuple[Extent, ...]) -> None:
    ctx.same(features, out[1])
    for bias in ctx.input(2):
        ctx.same(bias, out[1])
    for i, axis in enumerate(out):
        if i != 1 and axis.grows:
            ctx.same(x[i], axis)


@feature_map_rule("FusedGemm", domain=MICROSOFT)  # followed by an activation
@feature_map_rule("Gemm")
def gemm(ctx: FeatureMapContext) -> None:
    """``a [M, K]``, ``b [K, N]`` (or transposed), ``c`` broadcast to ``[M, N]``."""
    _matrix_product(ctx, bool(ctx.attr("transA", 0)), bool(ctx.attr("transB", 0)))
    ctx.broadcast(ctx.input(2), ctx.output())


@feature_map_rule("MatMul")
def matmul(ctx: FeatureMapContext) -> None:
    """``a [..., M, K]``, ``b [..., K, N]``; of vectors nothing grows that is summed over."""
    a, b, out = ctx.input(0), ctx.input(1), ctx.output()
    if len(a) > 1 and len(b) > 1:
        _matrix_product(ctx, False, False)
        return
    ctx.require_fixed((a[-1], b[-2] if len(b) > 1 else b[-1]), "sums over")
    ctx.same_axes((*a[:-1], *b[:-2], *(b[-1:] if len(b) > 1 else ())), out)


@feature_map_rule("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(ctx: FeatureMapContext) -> None:
    """A MatMul times ``alpha`` whose last two axes may be transposed on either side."""
    _matrix_product(ctx, bool(ctx.attr("transA", 0)), bool(ctx.attr("transB", 0)))


def _matrix_product(ctx: FeatureMapContext, trans_a: bool, trans_b: bool) -> None:
    a, b, out = ctx.input(0), ctx.input(1), ctx.output()
    rows, summed = (-1, -2) if trans_a else (-2, -1)
    columns, other = (-2, -1) if trans_b else (-1, -2)
    if not ctx.has_weight:
        # Of scores the keys: added queries that all are the same shift no score against another one, and so give the
        # keys a gradient, while the same keys everywhere would give queries none behind a softmax.
        ctx.require_zero((1, 0), [a[summed]], "sums products of activations over")
    ctx.same(a[summed], b[other])
    ctx.same(a[rows], out[-2])
    ctx.same(b[columns], out[-1])
    for operand in (a, b):
        ctx.broadcast(operand[:-2], out[:-2])


@feature_map_rule("Einsum")
def einsum(ctx: FeatureMapContext) -> None:
    """Axes of one label are the same; what is added along a label that is summed over is pruned, or has to be zero."""
    operands = [ctx.input(i) for i in range(len(ctx.node.inputs))]
    terms, result = einsum_terms(str(ctx.attr("equation")), [len(axes) for axes in operands])
    if terms is None:
        ctx.refuse("has an equation that does not fit its operands")
    labels = dict(zip(result, ctx.output(), strict=True))
    for term, axes in zip(terms, operands, strict=True):
        for label, axis in zip(term, axes, strict=True):
            if axis.old != 1:
                ctx.same(axis, labels.setdefault(label, axis))
    pruned = {label for i, term in enumerate(terms) if ctx.is_weight(i) for label in term}
    for label, axis in labels.items():
        if label not in result and label not in pruned:
            holders = [i for i, term in enumerate(terms) if label in term][::-1]
            ctx.require_zero(holders, [axis], "sums products of activations over")
