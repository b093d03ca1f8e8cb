"""Which rule covers which operator."""

from __future__ import annotations

from collections.abc import Callable

from sift_onnx.axis_rules.context import AxisRule

__all__ = ["axis_rule", "register_axis_rule", "rule_for"]

_RULES: dict[tuple[str, str], AxisRule] = {}

_STANDARD_DOMAINS = ("", "ai.onnx")


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
        rule: called with a :class:`~sift_onnx.axis_rules.context.RuleContext`; it must set the axes of every output.
        domain: the operator's domain; the standard one by default.
    """
    _RULES[("" if domain in _STANDARD_DOMAINS else domain, op)] = rule


def rule_for(op: str, domain: str | None) -> AxisRule | None:
    """The rule for an operator, or None."""
    return _RULES.get(("" if (domain or "") in _STANDARD_DOMAINS else str(domain), op))
