"""Where a verb's words go: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from sift_onnx.cli.plain_console import PlainConsole
from sift_onnx.errors import OutputError, printable

__all__ = ["byte_progress", "note", "print_all", "progress_bar", "status_line", "stdout_console", "write_json"]


def stdout_console() -> Console:
    """The console that results are printed on; wide enough for a table when stdout is no terminal."""
    return PlainConsole(width=None if sys.stdout.isatty() else 140)


def print_all(parts: Iterable[RenderableType]) -> None:
    """Print tables and lines on stdout."""
    console = stdout_console()
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))


def note(text: str, verbosity: int = 0) -> None:
    """Print a remark on stderr, unless ``verbosity`` is negative (``-q``)."""
    if verbosity >= 0:
        PlainConsole(stderr=True, soft_wrap=True).print(printable(text))


def _is_silent(verbosity: int) -> bool:
    return verbosity < 0 or not sys.stderr.isatty() or "NO_COLOR" in os.environ


@contextmanager
def status_line(text: str, verbosity: int = 0) -> Iterator[None]:
    """A spinner on stderr while something of unknown length runs; silent as :func:`progress_bar` is."""
    if _is_silent(verbosity):
        yield
        return
    with PlainConsole(stderr=True).status(text):
        yield


@contextmanager
def progress_bar(verbosity: int = 0) -> Iterator[Progress]:
    """A progress bar on stderr; silent when stderr is no terminal, NO_COLOR is set or ``-q`` was given."""
    silent = _is_silent(verbosity)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=PlainConsole(stderr=True), transient=True, disable=silent) as progress:
        yield progress


@contextmanager
def byte_progress(text: str, verbosity: int = 0) -> Iterator[Callable[[int, int], None]]:
    """A progress bar of bytes on stderr, to be told how many are done and how many there are; silent as the others."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    silent = _is_silent(verbosity)
    with Progress(*columns, console=PlainConsole(stderr=True), transient=True, disable=silent) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def write_json(document: Mapping[str, Any], path: str) -> None:
    """Write ``document`` to ``path``, or to stdout for ``-``.

    Raises:
        OutputError: the file cannot be written.
    """
    text = json.dumps(document, indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write JSON to {path!r} (--json): {error.strerror}") from error
