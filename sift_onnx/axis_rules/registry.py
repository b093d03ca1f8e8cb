"""Which rule covers which operator."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType

from sift_onnx.axis_rules.context import AxisRule
from sift_onnx.errors import PluginError
from sift_onnx.operator_domains import canonical_domain
from sift_onnx.plugins import AXIS_RULES, Plugin, find_plugins, in_one_line

__all__ = ["axis_rule", "load_axis_rules", "register_axis_rule", "rule_for"]

_RULES: dict[tuple[str, str], AxisRule] = {}


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
    _RULES[(canonical_domain(domain), op)] = rule


def rule_for(op: str, domain: str | None) -> AxisRule | None:
    """The rule for an operator, or None; plug-ins are loaded once there is an operator without one.

    Warns:
        UserWarning: a plug-in does not load; the others do.
    """
    key = (canonical_domain(domain), op)
    if key not in _RULES:
        _load_all_axis_rules()
    return _RULES.get(key)


@cache
def _load_all_axis_rules() -> None:
    for plugin in find_plugins(AXIS_RULES):
        try:
            load_axis_rules(plugin)
        except PluginError as error:
            warnings.warn(str(error), stacklevel=4)


def load_axis_rules(plugin: Plugin) -> None:
    """Load a plug-in: a module that registers rules when it is imported, or a function that does so when it is called.

    Raises:
        PluginError: it does not load, or has a rule for an operator that there is one for; none of its rules counts.
    """
    before = dict(_RULES)
    try:
        loaded = plugin.load()
        if callable(loaded):
            loaded()
        elif not isinstance(loaded, ModuleType):
            raise PluginError(f"{plugin}: {plugin.value} is neither a module nor a function")
        taken = [key for key, rule in before.items() if _RULES[key] is not rule]
        if taken:
            domain, op = taken[0]
            raise PluginError(f"{plugin} has a rule for {domain or 'ai.onnx'}::{op}, and so has someone else")
    except Exception as error:  # a foreign function may raise anything at all
        _RULES.clear()
        _RULES.update(before)
        if isinstance(error, PluginError):
            raise
        raise PluginError(f"{plugin} ({plugin.value}) does not load: {in_one_line(error)}") from error
