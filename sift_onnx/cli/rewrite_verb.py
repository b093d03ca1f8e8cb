"""What ``transform``, ``prune`` and ``densify`` have in common: passes from one file to another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sift_onnx.cli.output import byte_progress, deliver, note, status_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sift_onnx.model import Model, Storage
    from sift_onnx.passes import PassResult

__all__ = ["run"]


def run(
    apply: Callable[[Model], PassResult],
    source: Path,
    target: Path,
    *,
    doing: str,
    tables: Callable[[Mapping[str, Any]], Iterable[RenderableType]],
    outcome: Callable[[Mapping[str, Any]], str],
    storage: Storage,
    dry_run: bool,
    force: bool,
    json_path: str | None,
    verbosity: int,
) -> None:
    """Apply passes to the file ``source``, write ``target``, and say what was done.

    Args:
        apply: the passes; what they report is the document of a verb with layers.
        source: the model.
        target: the file to write.
        doing: for the status line, "pruning" say.
        tables: of the document.
        outcome: what ``target`` holds, from the document, in a sentence.
        storage: how masks are stored.
        dry_run: write nothing.
        force: overwrite ``target``.
        json_path: as of ``--json``.
        verbosity: below 0 nothing is said on stderr.
    """
    from sift_onnx.analysis.training_mode import mode_note
    from sift_onnx.model import Model
    from sift_onnx.model_files.paths import check_input, check_output

    check_input(source)
    if not dry_run:
        check_output(target, force)
    start = time.perf_counter()
    with status_line(f"reading {source}", verbosity):
        model = Model.load(source)
    with status_line(f"{doing} {source}", verbosity):
        result = apply(model)
    if not dry_run:
        with byte_progress(f"writing {target}", verbosity) as progress:
            result.model.save(target, storage=storage, force=force, progress=progress)
    names = {"model": str(source), "out": None if dry_run else str(target)}
    document: dict[str, Any] = {**result.report, **names, "seconds": time.perf_counter() - start}

    def in_words() -> Iterator[RenderableType]:
        if result.changed:
            yield from tables(document)
        if dry_run:
            yield f"Dry run: nothing was written to {target}."
        elif result.changed:
            yield outcome(document)
        else:
            reasons = list(dict.fromkeys(layer["reason"] for layer in document["layers"]))
            none = "its weight layers are left out" if document.get("left_out") else "it has no weight layer"
            yield f"{target} is {source} as it was: {', '.join(reasons[:3]) or none}."

    deliver(document, json_path, in_words)
    if result.report.get("inference_mode"):
        note(mode_note(result.report["inference_mode"]), verbosity)
    for line in result.report.get("assumed", ()):
        note(line, verbosity)
    for warning in result.report.get("warnings", ()):
        note(f"Warning: {warning}", verbosity)
