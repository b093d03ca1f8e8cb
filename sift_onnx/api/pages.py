"""The function that makes a page of results."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sift_onnx.api.rewriting import Rewritten
from sift_onnx.api.verb_call import call_verb
from sift_onnx.backends.dataflow.simulation.result import Simulation
from sift_onnx.errors import UsageError
from sift_onnx.records.record import Record

__all__ = ["Page", "report"]

Result = str | os.PathLike[str] | Record | Rewritten[Any] | Simulation


@dataclass(frozen=True)
class Page:
    """A page that was written.

    Attributes:
        path: of the page.
        size: in bytes.
    """

    path: Path
    size: int

    def __str__(self) -> str:
        return f"{self.path}: {self.size / 1e6:.2f} MB"

    def _repr_html_(self) -> str:
        return f'<a href="{self.path.as_posix()}">{self.path.name}</a>'


def report(
    results: Result | Sequence[Result],
    html: str | os.PathLike[str],
    *,
    models: Sequence[str | os.PathLike[str]] = (),
    layers: Sequence[str] = (),
    force: bool = False,
) -> Page:
    """Write one self-contained page of HTML from results of other functions and verbs.

    Args:
        results: what other functions return, and paths of JSON that verbs wrote; one or several.
        html: the page to write.
        models: paths of models whose masks are shown.
        layers: globs over initializer names: whose masks are shown.
        force: overwrite the page.

    Raises:
        UsageError: a file or an object is not a result.
        OutputError: the page exists and ``force`` is off, or it cannot be written.
        MissingExtraError: charts need matplotlib, which is not installed.
    """
    several = results if isinstance(results, Sequence) and not isinstance(results, str) else [results]
    given = [_record_or_path(result) for result in several]
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, result in enumerate(given):
            path = Path(folder, f"{type(result).__name__}-{number}.json")
            if isinstance(result, Record):
                path.write_text(json.dumps(result.to_dict()), encoding="utf-8")
            paths.append(str(path) if isinstance(result, Record) else result)
        options = {"html": os.fspath(html), "model": tuple(models), "layer": tuple(layers), "force": force}
        written = call_verb("report", dict, paths, options)
    return Page(Path(html), int(written["bytes"]))


def _record_or_path(result: Any) -> Record | str:
    """The record that a result has or is, or the path of one."""
    if isinstance(result, Rewritten):
        result = result.report
    elif isinstance(result, Simulation):
        result = result.report()
    if isinstance(result, Record):
        return result
    if isinstance(result, (str, os.PathLike)):
        return os.fspath(result)
    raise UsageError(f"{type(result).__name__} is not a result; give results of functions, or paths of JSON")
