"""Which rule says where the features of the original lie in the output of which operator."""

from __future__ import annotations

from collections.abc import Callable

from sift_onnx.feature_maps.context import FeatureMapContext
from sift_onnx.operators.registry import Registry

__all__ = ["FeatureMapRule", "feature_map_rule", "feature_map_rule_for"]

FeatureMapRule = Callable[[FeatureMapContext], None]

RULES: Registry[FeatureMapRule] = Registry("a feature-map rule", built_in="sift_onnx.feature_maps.rules")


def feature_map_rule(*ops: str, domain: str = "", replace: bool = False) -> Callable[[FeatureMapRule], FeatureMapRule]:
    """Decorator: register a rule for operators.

    Args:
        ops: operator types.
        domain: their domain; the standard one by default.
        replace: whether it takes the place of a rule that there is.

    Raises:
        UsageError: one of them has a rule, and ``replace`` is not set.
    """
    return RULES.register(*ops, domain=domain, replace=replace)


def feature_map_rule_for(op: str, domain: str | None) -> FeatureMapRule | None:
    """The rule for an operator, or None."""
    return RULES.find(op, domain)
