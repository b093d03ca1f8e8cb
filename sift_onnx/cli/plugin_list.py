"""What the command line says about plug-ins: ``--help`` that they are there, ``doctor`` whether they load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sift_onnx.errors import PluginError
from sift_onnx.plugins import (
    AXIS_RULES,
    BACKENDS,
    GROUPS,
    PASSES,
    SPARSITY,
    Plugin,
    find_plugins,
    in_one_line,
    unambiguous,
)

__all__ = ["check_plugins", "checked_rows", "plugin_rows"]


def plugin_rows() -> list[tuple[str, str]]:
    """What there is and whose it is, by name; nothing is imported."""
    return [(_title(p), _package(p)) for p in find_plugins() if p.group]


def check_plugins() -> list[dict[str, Any]]:
    """One entry for each plug-in, ready for JSON; all of them are imported."""
    return [
        {key: getattr(plugin, key) for key in ("group", "name", "package", "version", "value")}
        | {"ok": error is None, "error": error}
        for plugin in find_plugins()
        for error in [_error_of(plugin)]
    ]


def checked_rows(checked: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What :func:`check_plugins` found, as :func:`plugin_rows` has it; broken ones with their error."""
    return [
        (_title(plugin), _package(plugin) if entry["ok"] else f"broken: {entry['error']}")
        for plugin, entry in zip(find_plugins(), checked, strict=True)
    ]


def _title(plugin: Plugin) -> str:
    return f"{GROUPS[plugin.group]} {plugin.name}" if plugin.group else "plug-ins"


def _package(plugin: Plugin) -> str:
    return f"{plugin.package} {plugin.version}"


def _error_of(plugin: Plugin) -> str | None:
    """Why a plug-in cannot be used; None if it can."""
    try:
        _USES.get(plugin.group, Plugin.load)(plugin)
    except PluginError as error:
        return str(error)
    except ModuleNotFoundError as error:  # sparsity algorithms need torch
        return f"{plugin} needs {error.name}, which is not installed"
    except Exception as error:  # importing torch runs code of other packages
        return f"{plugin} cannot be looked at: {in_one_line(error)}"
    return None


def _use_pass(plugin: Plugin) -> None:
    from sift_onnx.passes.base import plugin_pass

    plugin_pass(plugin.name)


def _use_backend(plugin: Plugin) -> None:
    from sift_onnx.backends.base import plugin_backend

    plugin_backend(plugin.name)


def _use_axis_rules(plugin: Plugin) -> None:
    from sift_onnx.analysis.rule_registry import load_axis_rules

    unambiguous([p for p in find_plugins(AXIS_RULES) if p.name == plugin.name])
    load_axis_rules(plugin)


def _use_sparsity(plugin: Plugin) -> None:
    from sift_onnx.training.sparse.configure import plugin_algorithm

    plugin_algorithm(plugin.name)


_USES: dict[str, Callable[[Plugin], Any]] = {
    PASSES: _use_pass,
    BACKENDS: _use_backend,
    AXIS_RULES: _use_axis_rules,
    SPARSITY: _use_sparsity,
}
