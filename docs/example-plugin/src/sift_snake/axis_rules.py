"""What Snake says about the sizes of its tensors."""

from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule


@axis_rule("Snake", domain="com.example")
def snake(ctx: RuleContext) -> None:
    """``x [N, C, ...]`` comes out in its shape; ``alpha [C]`` follows the channels."""
    x, alpha = ctx.axes(0), ctx.axes(1)
    if x is None:
        ctx.pin_all(alpha, "the shape of its input is unknown")
        ctx.set_axes(0, None)
        return
    for axis in alpha or ():
        ctx.equate(axis, x[1], "one alpha for each channel")
    ctx.set_axes(0, x)
