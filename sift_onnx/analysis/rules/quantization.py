"""QuantizeLinear and DequantizeLinear: scales belong to an axis; stored integers keep their size."""

from __future__ import annotations

from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule
from sift_onnx.operators.domains import MICROSOFT

_PACKED = "weights stored as integers cannot be drawn again; transform the model before it is quantized"


@axis_rule("QuantizeLinear", "DequantizeLinear")
def quantize_linear(ctx: RuleContext) -> None:
    """``x`` passes; ``scale`` and ``zero_point`` are scalars or vectors along ``axis``."""
    x = ctx.axes(0)
    if x is None:
        ctx.set_axes(0, ctx.inferred_axes())
        return
    for position in (1, 2):
        parameter = ctx.axes(position)
        if not parameter:
            continue
        if len(parameter) == 1 and ctx.original(parameter[0]) > 1:
            ctx.equate(parameter[0], x[int(ctx.attr("axis", 1)) % len(x)], "scale of the axis")
        elif len(parameter) > 1:
            ctx.pin_all(x, "it is quantized in blocks")
            ctx.pin_all(parameter, "it is quantized in blocks")
    ctx.set_axes(0, x)


@axis_rule("DynamicQuantizeLinear")
def dynamic_quantize_linear(ctx: RuleContext) -> None:
    """``x`` passes; scale and zero point are scalars."""
    ctx.set_axes(0, ctx.axes(0))
    for i in (1, 2):
        ctx.set_axes(i, ())


@axis_rule("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv")
def integer_layer(ctx: RuleContext) -> None:
    """A layer that computes with integers keeps every size."""
    ctx.keep_sizes(_PACKED)


@axis_rule("MatMulNBits", "MatMulBnb4", domain=MICROSOFT)
def matmul_bits(ctx: RuleContext) -> None:
    """``a [..., K]`` times a packed weight of ``N`` columns."""
    ctx.keep_sizes(_PACKED)
    x = ctx.axes(0)
    ctx.set_axes(0, None if x is None else (*x[:-1], *ctx.const_axes([int(ctx.attr("N"))], _PACKED)))


@axis_rule("DynamicQuantizeMatMul", "MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_to_float(ctx: RuleContext) -> None:
    """``a [..., K]`` times integers ``b [K, N]``."""
    ctx.keep_sizes(_PACKED)
    a, b = ctx.axes(0), ctx.axes(1)
    ctx.set_axes(0, None if a is None or b is None else (*a[:-1], b[-1]))
