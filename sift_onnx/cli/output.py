"""Where a verb's words go: results to stdout, everything else to stderr.

rich is imported when something is printed: every verb imports this file, and a shell's completion imports verbs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sift_onnx.cli.flags import with_flags
from sift_onnx.errors import OutputError, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress

Found = TypeVar("Found")

_taken: ContextVar[list[Any] | None] = ContextVar("taken", default=None)

__all__ = [
    "byte_progress",
    "deliver",
    "flush_results",
    "note",
    "notes",
    "progress_bar",
    "results_taken",
    "status_line",
    "to_stdout",
    "write_json",
]


def deliver(
    found: Found,
    json_path: str | None,
    words: Callable[[Found], Iterable[RenderableType]],
) -> None:
    """Hand out what a verb has found: as JSON where ``--json`` says, and in words on stdout unless JSON is there.

    Settings that texts of it name become options. Where ``-q`` was given, there are no words.

    Args:
        found: the result, a record or what JSON holds.
        json_path: as of ``--json``: a file, ``-`` for stdout, or None.
        words: gives tables and lines for the result.

    Raises:
        OutputError: the file cannot be written.
    """
    taken = _taken.get()
    if taken is not None:
        taken.append(found)
        return
    shown = with_flags(found)
    if json_path is not None:
        from sift_onnx.records.record import json_of

        write_json(json_of(shown), json_path)
    if json_path == "-" or _is_quiet():
        return
    from rich.table import Table

    from sift_onnx.reports.fitting_table import width_beyond_terminals
    from sift_onnx.reports.plain_console import PlainConsole

    console = PlainConsole()
    with to_stdout():
        for part in words(shown):
            if not sys.stdout.isatty():
                # A file and a pipe have room for everything.
                console.width = width_beyond_terminals(console, part) if isinstance(part, Table) else 140
            console.print(with_flags(part), soft_wrap=isinstance(part, str))


def _is_quiet() -> bool:
    """Whether the verb that runs was called with ``-q``."""
    context = click.get_current_context(silent=True)
    return context is not None and context.params.get("verbosity", 0) < 0


@contextmanager
def results_taken() -> Iterator[list[Any]]:
    """Within it, :func:`deliver` puts results into the list, and prints nothing: verbs that are called from Python."""
    results: list[Any] = []
    token = _taken.set(results)
    try:
        yield results
    finally:
        _taken.reset(token)


def flush_results() -> None:
    """Have everything on stdout written.

    Raises:
        OutputError: it cannot be.
    """
    with to_stdout():
        sys.stdout.flush()


@contextmanager
def to_stdout() -> Iterator[None]:
    """An :class:`OutputError` in place of what stdout says of a full disk."""
    try:
        yield
    except BrokenPipeError:  # the reader has left, which is not an error
        raise
    except OSError as error:
        raise OutputError(f"cannot write to stdout: {error.strerror or error}") from error


def note(text: str, verbosity: int = 0) -> None:
    """Print a remark on stderr, unless ``verbosity`` is negative (``-q``)."""
    if verbosity >= 0:
        from sift_onnx.reports.plain_console import PlainConsole

        PlainConsole(stderr=True, soft_wrap=True).print(with_flags(printable(text)))


def notes(verbosity: int, remarks: Iterable[str] | None = None, warnings: Iterable[str] | None = None) -> None:
    """Print remarks on stderr, then warnings, which are marked as such; as :func:`note`."""
    for text in remarks or ():
        note(text, verbosity)
    for text in warnings or ():
        note(f"Warning: {text}", verbosity)


def _is_silent(verbosity: int) -> bool:
    return verbosity < 0 or not sys.stderr.isatty() or "NO_COLOR" in os.environ


@contextmanager
def status_line(text: str, verbosity: int = 0) -> Iterator[None]:
    """A spinner on stderr while something of unknown length runs; silent as :func:`progress_bar` is."""
    if _is_silent(verbosity):
        yield
        return
    from sift_onnx.reports.plain_console import PlainConsole

    with PlainConsole(stderr=True).status(text):
        yield


@contextmanager
def progress_bar(verbosity: int = 0) -> Iterator[Progress]:
    """A progress bar on stderr; silent when stderr is not a terminal, NO_COLOR is set or ``-q`` was given."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from sift_onnx.reports.plain_console import PlainConsole

    silent = _is_silent(verbosity)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=PlainConsole(stderr=True), transient=True, disable=silent) as progress:
        yield progress


@contextmanager
def byte_progress(text: str, verbosity: int = 0) -> Iterator[Callable[[int, int], None]]:
    """A progress bar of bytes on stderr, called with how many are done and how many there are; silent as the others."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from sift_onnx.reports.plain_console import PlainConsole

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
        with to_stdout():
            sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write JSON to {path!r} (--json): {error.strerror}") from error
