"""Operators of ai.onnx.ml that converters of scikit-learn write in front of a network: what they make is shaped alike.

Offsets, scales and imputed values are attributes, which hold numbers of the training data and are not drawn at random.
"""

from __future__ import annotations

from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule
from sift_onnx.analysis.rules.elementwise import unary
from sift_onnx.operators.domains import ML


@axis_rule("Scaler", domain=ML)
def scaler(ctx: RuleContext) -> None:
    """``(x - offset) * scale`` with one offset and scale for each feature, or one for all of them."""
    _keep_features(ctx, "it has an offset and a scale for each feature", "offset", "scale")


@axis_rule("Imputer", domain=ML)
def imputer(ctx: RuleContext) -> None:
    """Missing values are replaced, by one value for each feature or one for all of them."""
    _keep_features(ctx, "it has a value for each feature", "imputed_value_floats", "imputed_value_int64s")


# 1 above a threshold, else 0; element by element.
axis_rule("Binarizer", domain=ML)(unary)


@axis_rule("Normalizer", domain=ML)
def normalizer(ctx: RuleContext) -> None:
    """Each row is divided by its norm, so that every feature depends on all others."""
    ctx.pin_all(ctx.axes(0), "each row is divided by its norm, over all features")
    ctx.set_axes(0, ctx.axes(0))


def _keep_features(ctx: RuleContext, reason: str, *attributes: str) -> None:
    if any(len(ctx.attr(name) or ()) > 1 for name in attributes):
        ctx.pin_all(ctx.axes(0), reason)
    ctx.set_axes(0, ctx.axes(0))
