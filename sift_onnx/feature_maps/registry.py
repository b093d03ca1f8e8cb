"""Which rule places the features behind which operator."""

from __future__ import annotations

from collections.abc import Callable

from sift_onnx.feature_maps.context import PlacementContext
from sift_onnx.operators.domains import canonical_domain

__all__ = ["PlacementRule", "placement_rule", "placement_rule_for"]

PlacementRule = Callable[[PlacementContext], None]

_RULES: dict[tuple[str, str], PlacementRule] = {}


def placement_rule(*ops: str, domain: str = "") -> Callable[[PlacementRule], PlacementRule]:
    """Decorator: register a rule for operators.

    Args:
        ops: operator types.
        domain: their domain; the standard one by default.
    """

    def register(rule: PlacementRule) -> PlacementRule:
        for op in ops:
            _RULES[canonical_domain(domain), op] = rule
        return rule

    return register


def placement_rule_for(op: str, domain: str | None) -> PlacementRule | None:
    """The rule for an operator, or None."""
    return _RULES.get((canonical_domain(domain), op))
