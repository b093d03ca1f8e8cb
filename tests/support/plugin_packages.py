"""Packages with plug-ins, as pip leaves them on a path: modules, and a dist-info folder with entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from sift_onnx.analysis import rule_registry
from sift_onnx.plugins import find_plugins


def make_package(folder: Path, name: str, entries: Mapping[str, Mapping[str, str]], source: str = "") -> None:
    """An installed package of version 1.0 with one module.

    Args:
        folder: to be put on the path.
        name: of the package and of its module.
        entries: entry-point group -> name -> value.
        source: of the module; none at all if empty.
    """
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{entry} = {value}\n" for entry, value in of.items()) for group, of in entries.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    if source:
        (folder / f"{name}.py").write_text(source)


@contextmanager
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The packages of ``folder`` are found, as if they were installed; what they registered is forgotten afterwards."""
    rules = rule_registry.RULES.snapshot()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(folder))
        _forget()
        yield
    rule_registry.RULES.restore(rules)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]
    _forget()


def _forget() -> None:
    find_plugins.cache_clear()
    rule_registry._load_all_axis_rules.cache_clear()
