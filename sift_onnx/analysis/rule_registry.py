"""Which axis rule covers which operator."""

from __future__ import annotations

from collections.abc import Callable

from sift_onnx.analysis.rule_context import AxisRule
from sift_onnx.operators.domains import canonical_domain

__all__ = ["RULES", "axis_rule", "register_axis_rule"]

RULES: dict[tuple[str, str], AxisRule] = {}


def axis_rule(*ops: str, domain: str = "") -> Callable[[AxisRule], AxisRule]:
    """Decorator: the function is the rule for ``ops`` of ``domain``."""

    def register(rule: AxisRule) -> AxisRule:
        for op in ops:
            register_axis_rule(op, rule, domain=domain)
        return rule

    return register


def register_axis_rule(op: str, rule: AxisRule, *, domain: str = "") -> None:
    """Teach the analysis an operator.

    Args:
        op: the operator type.
        rule: called with a :class:`~sift_onnx.analysis.rule_context.RuleContext`; it must set the axes of every output.
        domain: the operator's domain; the standard one by default.
    """
    RULES[(canonical_domain(domain), op)] = rule
