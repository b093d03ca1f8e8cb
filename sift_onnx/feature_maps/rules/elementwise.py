"""Element by element: features stay where they are.

The added features must stay finite, since a pruned weight times infinity is not zero. What is infinite or undefined for
some finite input is refused, unless what is added is known to lie elsewhere, or is stored and can be chosen.
"""

from __future__ import annotations

import math

from sift_onnx.feature_maps.context import FeatureMapContext
from sift_onnx.feature_maps.registry import feature_map_rule
from sift_onnx.graphs.constants import array_of, constant_values
from sift_onnx.operators.traits import ELEMENTWISE_BINARY, ELEMENTWISE_UNARY

# Infinite or undefined for some finite input.
UNBOUNDED_UNARY = frozenset("Acos Acosh Asin Asinh Atanh Cosh Exp Log Reciprocal Sinh Sqrt Tan".split())
# Above and below which numbers they are neither, and have a finite slope.
_FINITE_BETWEEN = {
    **dict.fromkeys(("Log", "Reciprocal", "Sqrt"), (0.0, math.inf)),
    **dict.fromkeys(("Cosh", "Exp", "Sinh"), (-math.inf, 80.0)),
    **dict.fromkeys(("Acos", "Asin", "Atanh"), (-1.0, 1.0)),
    "Acosh": (1.0, math.inf),
    "Tan": (-1.5, 1.5),
}
# Not those that draw: with more features, the old ones would be drawn differently.
FINITE_UNARY = ELEMENTWISE_UNARY - UNBOUNDED_UNARY - {"RandomNormalLike", "RandomUniformLike"}
# Shifts and remainders have no rule; quotients and powers have their own.
FINITE_BINARY = ELEMENTWISE_BINARY - {"BitShift", "Div", "Mod", "Pow"}


@feature_map_rule(*FINITE_UNARY, "CastLike", "Clip", "Dropout")
def unary(ctx: FeatureMapContext) -> None:
    """Every output is placed like the first input."""
    for i in range(len(ctx.node.outputs)):
        ctx.same_axes(ctx.input(0), ctx.output(i))


@feature_map_rule(*UNBOUNDED_UNARY)
def unbounded(ctx: FeatureMapContext) -> None:
    """What may be infinite or undefined, or have such a slope, is refused."""
    low, high = ctx.added_range(0)
    least, most = _FINITE_BETWEEN[ctx.node.op]
    # What is added is finite: a range without an end says that it may be large, which these take.
    if low <= least or (high >= most and not math.isinf(most)):
        ctx.refuse("may be infinite or undefined for the features that are added")
    unary(ctx)


@feature_map_rule(*FINITE_BINARY)
def binary(ctx: FeatureMapContext) -> None:
    """Every operand is broadcast to the output."""
    for i in range(len(ctx.node.inputs)):
        ctx.broadcast(ctx.input(i), ctx.output())


@feature_map_rule("Div")
def divide(ctx: FeatureMapContext) -> None:
    """A divisor whose features grow must be stored, or be known not to be zero."""
    low, high = ctx.added_range(1)
    if any(axis.grows for axis in ctx.input(1)) and not ctx.is_parameter(1) and low <= 0 <= high:
        ctx.refuse("divides by features that are added, which may be zero")
    binary(ctx)


@feature_map_rule("Pow")
def power(ctx: FeatureMapContext) -> None:
    """Whole powers of 0 or more are finite, and all powers of what is positive."""
    exponent = constant_values(ctx.node.inputs[1])
    whole = exponent is not None and all(
        float(value) >= 0 and float(value).is_integer() for value in array_of(exponent).reshape(-1)
    )
    if not (whole or ctx.added_range(0)[0] > 0) or any(axis.grows for axis in ctx.input(1)):
        ctx.refuse("raises features that are added to a power that may be undefined for them")
    binary(ctx)
