"""Which rule says where the features of the original lie in the output of which operator."""

from __future__ import annotations

from collections.abc import Callable

from sift_onnx.feature_maps.context import PlacementContext
from sift_onnx.operators.registry import Registry

__all__ = ["PlacementRule", "placement_rule", "placement_rule_for"]

PlacementRule = Callable[[PlacementContext], None]

RULES: Registry[PlacementRule] = Registry("a placement rule", built_in="sift_onnx.feature_maps.rules")


def placement_rule(*ops: str, domain: str = "", replace: bool = False) -> Callable[[PlacementRule], PlacementRule]:
    """Decorator: register a rule for operators.

    Args:
        ops: operator types.
        domain: their domain; the standard one by default.
        replace: whether it takes the place of a rule that there is.

    Raises:
        UsageError: one of them has a rule, and ``replace`` is not set.
    """
    return RULES.register(*ops, domain=domain, replace=replace)


def placement_rule_for(op: str, domain: str | None) -> PlacementRule | None:
    """The rule for an operator, or None."""
    return RULES.find(op, domain)
