"""What ``transform``, ``prune`` and ``densify`` have in common: passes from one file to another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sift_onnx.cli.output import byte_progress, deliver, note, notes, progress_bar, status_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sift_onnx.model import Model, Storage
    from sift_onnx.passes import PassResult
    from sift_onnx.records.transform import TransformReport

__all__ = ["Rewriting", "run"]


@dataclass(frozen=True)
class Rewriting:
    """What all these verbs are called with.

    Attributes:
        source: the model.
        target: the file to write.
        storage: how masks are stored.
        dry_run: write nothing.
        full: list every layer.
        force: overwrite ``target``.
        json_path: as of ``--json``.
        verbosity: below 0 nothing is said on stderr.
    """

    source: Path
    target: Path
    storage: Storage
    dry_run: bool
    full: bool
    force: bool
    json_path: str | None
    verbosity: int

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> Rewriting:
        """These out of all ``options`` of a verb, which keep those of its passes."""
        return cls(**{field.name: options.pop(field.name) for field in fields(cls)})


def run(
    apply: Callable[[Model], PassResult],
    call: Rewriting,
    *,
    doing: str,
    tables: Callable[[TransformReport, bool], Iterable[RenderableType]],
    outcome: Callable[[TransformReport], str],
) -> None:
    """Apply passes to a file, write another, and say what was done.

    Args:
        apply: the passes; what they report is a :class:`TransformReport`, and may have more fields.
        call: the files, and how the second is written.
        doing: for the status line, "pruning" say.
        tables: of the report, with a row for every layer or not.
        outcome: what the target holds, from the report, in a sentence.
    """
    from sift_onnx.analysis.training_mode import mode_note
    from sift_onnx.model import Model
    from sift_onnx.model_files.paths import check_input, check_output
    from sift_onnx.passes.progress import listening
    from sift_onnx.records.reading import read_record
    from sift_onnx.records.transform import TransformReport

    source, target, dry_run, verbosity = call.source, call.target, call.dry_run, call.verbosity
    check_input(source)
    if not dry_run:
        check_output(target, call.force)
    start = time.perf_counter()
    with status_line(f"reading {source}", verbosity):
        model = Model.load(source)
    with progress_bar(verbosity) as bar:
        task = bar.add_task(f"{doing} {source}", total=None)

        def on_layer(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{doing} {name}")

        with listening(on_layer):
            result = apply(model)
    if not dry_run:
        with byte_progress(f"writing {target}", verbosity) as progress:
            result.model.save(target, storage=call.storage, force=call.force, progress=progress)
    names = {"model": str(source), "out": None if dry_run else str(target)}
    document: dict[str, Any] = {**result.report, **names, "seconds": time.perf_counter() - start}

    def in_words(document: Mapping[str, Any]) -> Iterator[RenderableType]:
        report = read_record(dict(document), TransformReport, "the report of the passes")
        if result.changed:
            yield from tables(report, call.full)
        if dry_run:
            yield f"Dry run: nothing was written to {target}."
        elif result.changed:
            yield outcome(report)
        else:
            reasons = list(dict.fromkeys(layer.reason for layer in report.layers))
            none = "its weight layers are left out" if report.left_out else "it has no weight layer"
            yield f"{target} is {source} as it was: {', '.join(reasons[:3]) or none}."

    deliver(document, call.json_path, in_words)
    if result.report.get("inference_mode"):
        note(mode_note(result.report["inference_mode"]), verbosity)
    notes(verbosity, result.report.get("assumed"), result.report.get("warnings"))
