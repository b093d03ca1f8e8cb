"""Look up the axis rule of an operator: ours, or else a plug-in's."""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

# Our rules are registered before those of plug-ins, which cannot override them.
import sift_onnx.analysis.rules  # noqa: F401
from sift_onnx.analysis.rule_context import AxisRule
from sift_onnx.analysis.rule_registry import RULES
from sift_onnx.errors import PluginError
from sift_onnx.operators.domains import canonical_domain
from sift_onnx.plugins import AXIS_RULES, Plugin, find_plugins, in_one_line

__all__ = ["load_axis_rules", "rule_for"]


def rule_for(op: str, domain: str | None) -> AxisRule | None:
    """The rule for an operator, or None; plug-ins are loaded once there is an operator without one.

    Warns:
        UserWarning: a plug-in does not load; the others do.
    """
    key = (canonical_domain(domain), op)
    if key not in RULES:
        _load_all_axis_rules()
    return RULES.get(key)


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
    before = dict(RULES)
    try:
        loaded = plugin.load()
        if callable(loaded):
            loaded()
        elif not isinstance(loaded, ModuleType):
            raise PluginError(f"{plugin}: {plugin.value} is neither a module nor a function")
        taken = [key for key, rule in before.items() if RULES[key] is not rule]
        if taken:
            domain, op = taken[0]
            raise PluginError(f"{plugin} has a rule for {domain or 'ai.onnx'}::{op}, and so has someone else")
    except Exception as error:  # a foreign function may raise anything at all
        RULES.clear()
        RULES.update(before)
        if isinstance(error, PluginError):
            raise
        raise PluginError(f"{plugin} ({plugin.value}) does not load: {in_one_line(error)}") from error
