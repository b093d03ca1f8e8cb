"""Plug-ins: passes, back ends, axis rules and sparsity algorithms of other packages, found by their entry points.

A package offers them in its own metadata:

    [project.entry-points."sift_onnx.passes"]
    my-pass = "my_package.my_pass:MyPass"

Nothing of a package is imported before it is asked for by name, and nothing that goes wrong with one keeps another from
being found.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from sift_onnx.errors import PluginError

__all__ = [
    "AXIS_RULES",
    "BACKENDS",
    "GROUPS",
    "PASSES",
    "SPARSITY",
    "Plugin",
    "find_plugins",
    "first_line",
    "in_one_line",
    "load_file",
    "plugin_class",
    "plugin_names",
    "unambiguous",
]

PASSES = "sift_onnx.passes"
BACKENDS = "sift_onnx.backends"
AXIS_RULES = "sift_onnx.axis_rules"
SPARSITY = "sift_onnx.sparsity"

# Entry-point group -> what one of its members is called.
GROUPS = {PASSES: "pass", BACKENDS: "back end", AXIS_RULES: "axis rules", SPARSITY: "sparsity algorithm"}

_Class = TypeVar("_Class")


@dataclass(frozen=True)
class Plugin:
    """One entry point of an installed package.

    Attributes:
        group: of :data:`GROUPS`; empty if the package's entry points cannot be read at all.
        name: under which it is asked for.
        value: the module, or ``module:attribute``, that it stands for.
        package: that offers it.
        version: of that package.
        damage: why its entry cannot be read; empty if it can.
    """

    group: str
    name: str
    value: str
    package: str
    version: str
    damage: str = ""
    _entry: metadata.EntryPoint | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{GROUPS.get(self.group, 'entry points')} {self.name!r} of {self.package} {self.version}"

    def load(self) -> Any:
        """What the entry point stands for; its module is imported.

        Raises:
            PluginError: it cannot be.
        """
        if self._entry is None:
            raise PluginError(f"{self}: {self.damage}; repair or uninstall {self.package}")
        try:
            return self._entry.load()
        except Exception as error:  # a plug-in may raise anything
            raise PluginError(
                f"{self} ({self.value}) does not load: {in_one_line(error)}; repair or uninstall {self.package}"
            ) from error


@cache
def find_plugins(group: str | None = None) -> tuple[Plugin, ...]:
    """The plug-ins of a group, or of all groups, ordered by group, name and package; none is imported.

    Entry points that cannot be read are listed with all groups.
    """
    if group is not None:
        return tuple(plugin for plugin in find_plugins() if plugin.group == group)
    order = list(GROUPS)
    found = {(p.group, p.name, p.value, p.package): p for d in metadata.distributions() for p in _plugins_of(d)}
    return tuple(
        sorted(
            found.values(), key=lambda p: (order.index(p.group) if p.group else len(order), p.name, p.package, p.value)
        )
    )


def plugin_names(group: str) -> tuple[str, ...]:
    """The names that plug-ins of a group are asked for by."""
    return tuple(dict.fromkeys(plugin.name for plugin in find_plugins(group)))


def plugin_class(group: str, name: str, base: type[_Class]) -> type[_Class] | None:
    """The class that a plug-in offers under a name; None if none does.

    Args:
        group: of :data:`GROUPS`.
        name: capitals do not matter.
        base: the class must be a subclass of it.

    Raises:
        PluginError: two packages offer the name, it does not load, or it is no such class.
    """
    offered = [plugin for plugin in find_plugins(group) if plugin.name.lower() == name.lower()]
    if not offered:
        return None
    plugin = unambiguous(offered)
    loaded = plugin.load()
    what = f"{base.__module__}.{base.__name__}"
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise PluginError(f"{plugin}: {plugin.value} is not a subclass of {what}; repair or uninstall {plugin.package}")
    if inspect.isabstract(loaded):
        lacking = ", ".join(sorted(getattr(loaded, "__abstractmethods__", ())))
        raise PluginError(f"{plugin}: {plugin.value} does not define {lacking}; repair or uninstall {plugin.package}")
    return loaded


def unambiguous(offered: Sequence[Plugin]) -> Plugin:
    """The only one of several plug-ins of a name.

    Raises:
        PluginError: there are two.
    """
    first, *others = offered
    if others:
        rest = " and ".join(f"{other.package} {other.version}" for other in others)
        raise PluginError(f"{first} is offered by {rest} too; uninstall all but one")
    return first


def in_one_line(error: BaseException) -> str:
    """An error of someone else's: its type, and its whole message in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def first_line(error: BaseException) -> str:
    """``Type: first line of the message``."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def load_file(path: Path) -> ModuleType:
    """Execute a Python file of the user's as a module; what it raises is raised.

    Raises:
        RuntimeError: the file ends the program.
    """
    # Under a unique name: two files may have the same one, and neither may shadow an installed module.
    unique = f"_sift_onnx_user_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(unique, path)
    assert spec is not None and spec.loader is not None  # holds for every name that ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module  # dataclasses and the workers of a DataLoader look their module up here
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        del sys.modules[unique]
        raise RuntimeError(f"it ends the program by sys.exit({error.code!r})") from error
    except BaseException:
        del sys.modules[unique]
        raise
    return module


def _plugins_of(distribution: metadata.Distribution) -> Iterator[Plugin]:
    try:
        entries = [entry for entry in distribution.entry_points if entry.group in GROUPS]
        if not entries:
            return
        package, version = str(distribution.metadata["Name"]), str(distribution.version)
    except Exception as error:  # its files may hold anything
        if _mentions_us(distribution):
            package = str(getattr(distribution, "_path", "an unnamed package"))
            yield Plugin("", "", "", package, "", damage=in_one_line(error))
        return
    for entry in entries:
        yield Plugin(entry.group, entry.name, entry.value, package, version, _entry=entry)


def _mentions_us(distribution: metadata.Distribution) -> bool:
    try:
        return any(group in (distribution.read_text("entry_points.txt") or "") for group in GROUPS)
    except Exception:  # not even text
        return False
