"""Which axis rule covers which operator: a built-in one, one that a program registers, or one of a plug-in."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType

from sift_onnx.analysis.rule_context import AxisRule
from sift_onnx.errors import PluginError
from sift_onnx.operators.registry import Registry, TakenError
from sift_onnx.plugins import AXIS_RULES, Plugin, find_plugins, in_one_line

__all__ = ["RULES", "axis_rule", "load_axis_rules", "register_axis_rule", "rule_for"]

RULES: Registry[AxisRule] = Registry("an axis rule", built_in="sift_onnx.analysis.rules")


def axis_rule(*ops: str, domain: str = "", replace: bool = False) -> Callable[[AxisRule], AxisRule]:
    """Decorator: the function is the rule for ``ops`` of ``domain``.

    Raises:
        UsageError: one of them has a rule, and ``replace`` is not set.
    """
    return RULES.register(*ops, domain=domain, replace=replace)


def register_axis_rule(op: str, rule: AxisRule, *, domain: str = "") -> None:
    """Teach the analysis an operator, or replace the rule that it has for one.

    Args:
        op: the operator type.
        rule: called with a :class:`~sift_onnx.analysis.rule_context.RuleContext`; it must set the axes of every output.
        domain: the operator's domain; the standard one by default.
    """
    RULES.add(op, rule, domain=domain, replace=True)


def rule_for(op: str, domain: str | None) -> AxisRule | None:
    """The rule for an operator, or None; plug-ins are loaded once there is an operator without one.

    Warns:
        UserWarning: a plug-in does not load; the others do.
    """
    found = RULES.find(op, domain)
    if found is None:
        _load_all_axis_rules()
    return found or RULES.find(op, domain)


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
    try:
        with RULES.only_new():
            loaded = plugin.load()
            if callable(loaded):
                loaded()
            elif not isinstance(loaded, ModuleType):
                raise PluginError(f"{plugin}: {plugin.value} is neither a module nor a function")
    except Exception as error:  # a plug-in may raise anything
        taken = _taken(error)
        if taken is not None:
            raise PluginError(f"{plugin} has a rule for {taken.operator}, and so has someone else") from error
        if isinstance(error, PluginError):
            raise
        raise PluginError(f"{plugin} ({plugin.value}) does not load: {in_one_line(error)}") from error


def _taken(error: BaseException | None) -> TakenError | None:
    """The cause of an error that is one of a taken operator: plug-ins report what importing them raised."""
    while error is not None and not isinstance(error, TakenError):
        error = error.__cause__
    return error
