"""QuantizeLinear and DequantizeLinear: scales belong to an axis; stored integers keep their size."""

from __future__ import annotations

from sift_onnx.axis_rules.context import RuleContext
from sift_onnx.axis_rules.registry import axis_rule


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
