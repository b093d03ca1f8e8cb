"""The function that makes a page of results."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sift_onnx.api.verb_call import call_verb
from sift_onnx.records.record import Record

__all__ = ["Page", "report"]


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
    results: str | os.PathLike[str] | Record | Sequence[str | os.PathLike[str] | Record],
    html: str | os.PathLike[str],
    *,
    models: Sequence[str | os.PathLike[str]] = (),
    layers: Sequence[str] = (),
    force: bool = False,
) -> Page:
    """Write one self-contained page of HTML from results of other functions and verbs.

    Args:
        results: records, and paths of JSON that verbs wrote.
        html: the page to write.
        models: paths of models whose masks are shown.
        layers: globs over initializer names: whose masks are shown.
        force: overwrite the page.

    Raises:
        UsageError: a file is no result.
        OutputError: the page exists and ``force`` is off, or it cannot be written.
        MissingExtraError: charts need matplotlib, which is not installed.
    """
    given = [results] if isinstance(results, (str, os.PathLike, Record)) else list(results)
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, result in enumerate(given):
            path = Path(folder, f"{type(result).__name__}-{number}.json")
            if isinstance(result, Record):
                path.write_text(json.dumps(result.to_dict()), encoding="utf-8")
            paths.append(str(path) if isinstance(result, Record) else os.fspath(result))
        options = {"html": os.fspath(html), "model": tuple(models), "layer": tuple(layers), "force": force}
        written = call_verb("report", dict, paths, options)
    return Page(Path(html), int(written["bytes"]))
