"""Fused operators of the com.microsoft domain around activations and normalizations."""

from __future__ import annotations

from sift_onnx.feature_maps.context import FeatureMapContext
from sift_onnx.feature_maps.registry import feature_map_rule
from sift_onnx.feature_maps.rules.along_axes import correct_normalization, normalized_from
from sift_onnx.feature_maps.rules.elementwise import binary, unary
from sift_onnx.operators.domains import MICROSOFT

# ``x`` plus an optional bias, through an activation.
feature_map_rule("BiasGelu", "FastGelu", "BiasAdd", domain=MICROSOFT)(binary)
feature_map_rule("Gelu", "QuickGelu", domain=MICROSOFT)(unary)


@feature_map_rule("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(ctx: FeatureMapContext) -> None:
    """``input + skip`` is normalized over its last axis, and its mean, which nobody can see, is subtracted."""
    x = ctx.input(0)
    ctx.require_fixed(x[-1:], "subtracts, from a sum that it makes itself, the mean over")
    normalized_from(ctx, x, len(x) - 1, ())


@feature_map_rule("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_rms_normalization(ctx: FeatureMapContext) -> None:
    """``input + skip (+ bias)`` is divided by its root mean square over the last axis, and scaled by input 2."""
    x = ctx.input(0)
    normalized_from(ctx, x, len(x) - 1, range(2, 4))
    for i in (1, 3):
        if ctx.has_input(i):
            ctx.require_zero((i,), x[-1:], "normalizes over")
            ctx.broadcast(ctx.input(i), x)
    correct_normalization(ctx, x[-1:], 2, 1e-12)
