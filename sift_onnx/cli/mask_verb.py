"""What ``prune`` and ``densify`` have in common: a pass from one file to another, and a table of its layers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sift_onnx.cli.output import byte_progress, print_all, status_line, write_json

if TYPE_CHECKING:
    from sift_onnx.model import Storage
    from sift_onnx.passes import Pass

__all__ = ["run"]


def run(
    pass_: Pass,
    source: Path,
    target: Path,
    *,
    title: str,
    doing: str,
    done: str,
    storage: Storage,
    dry_run: bool,
    force: bool,
    json_path: str | None,
    verbosity: int,
) -> None:
    """Apply ``pass_`` to the file ``source``, write ``target``, and print what was done.

    Args:
        pass_: its report is the document of a verb with layers.
        source: the model.
        target: the file to write.
        title: of the table.
        doing: for the status line, "pruning" say.
        done: what the result is, with the field ``target``.
        storage: how masks are stored.
        dry_run: write nothing.
        force: overwrite ``target``.
        json_path: where the document goes besides, ``-`` for stdout in place of the table.
        verbosity: below 0 nothing is said on stderr.
    """
    from sift_onnx.files.storage import check_output
    from sift_onnx.model import Model
    from sift_onnx.report.masks import mask_tables

    if not dry_run:
        check_output(target, force)
    start = time.perf_counter()
    with status_line(f"reading {source}", verbosity):
        model = Model.load(source)
    with status_line(f"{doing} {source}", verbosity):
        result = pass_(model)
    if not dry_run:
        with byte_progress(f"writing {target}", verbosity) as progress:
            result.model.save(target, storage=storage, force=force, progress=progress)
    names = {"model": str(source), "out": None if dry_run else str(target)}
    document: dict[str, Any] = {**result.report, **names, "seconds": time.perf_counter() - start}
    if json_path is not None:
        write_json(document, json_path)
    if json_path == "-":
        return
    if result.changed:
        print_all(mask_tables(document, title))
    if dry_run:
        click.echo(f"Dry run: nothing was written to {target}.")
    elif result.changed:
        click.echo(done.format(target=target))
    else:
        reasons = dict.fromkeys(layer["reason"] for layer in document["layers"])
        click.echo(f"{target} is {source} as it was: {', '.join(reasons) or 'it has no weight layer'}.")
