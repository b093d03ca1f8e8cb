"""Widen every exported file of the zoo at several sparsities, check the results, and make a table of them.

    python benchmarks/zoo/run.py --folder build/zoo
    python benchmarks/zoo/run.py --folder build/zoo --table

Each file is handled in a process of its own. Results are appended to ``results.jsonl`` in the folder, one line for each
file and sparsity; of several lines for the same, the last one counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click
from settings import FOLDER, read_index, single_threaded
from table import failures, markdown, newest

__all__ = ["main"]

_RESULTS = "results.jsonl"


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), default=FOLDER, help="Where the exports are.")
@click.option("--file", "files", multiple=True, default=("*",), help="Glob over file names (repeatable).")
@click.option("--sparsity", "sparsities", multiple=True, default=("0.5", "0.75", "0.9"), show_default=True)
@click.option("--budget", default="model", show_default=True, help="As of the pass Wide.")
@click.option("--timeout", type=int, default=300, show_default=True, help="Seconds for one file.")
@click.option("--again", type=click.Choice(["no", "failed", "all"]), default="no", help="What to repeat.")
@click.option("--results", type=click.Path(path_type=Path), help="Other file for the results.")
@click.option("--table", is_flag=True, help="Run nothing; print the results as a Markdown table.")
@click.option("--failures", "grouped", is_flag=True, help="Run nothing; print what failed, grouped by cause.")
def main(
    folder: Path,
    files: Sequence[str],
    sparsities: Sequence[str],
    budget: str,
    timeout: int,
    again: str,
    results: Path | None,
    table: bool,
    grouped: bool,
) -> None:
    """Widen what ``export.py`` exported, and check the results."""
    results = results or folder / _RESULTS
    index = read_index(folder)
    if table or grouped:
        known = newest(_read(results))
        click.echo(failures(known) if grouped else markdown(known, index))
        return
    for name, entry in index.items():
        if entry["error"] or not any(fnmatch(name, glob) for glob in files):
            continue
        wanted = [s for s in sparsities if _is_wanted(name, s, budget, again, newest(_read(results)))]
        for result in _run(folder, name, entry, wanted, budget, timeout) if wanted else ():
            with results.open("a") as stream:
                stream.write(json.dumps(result) + "\n")
            click.echo(f"{name} at {result['sparsity']}: {'ok' if result['ok'] else result['error']}")


def _read(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def _is_wanted(name: str, sparsity: str, budget: str, again: str, known: dict[Any, dict[str, Any]]) -> bool:
    result = known.get((name, sparsity, budget))
    return result is None or again == "all" or (again == "failed" and not result["ok"])


def _run(
    folder: Path, name: str, entry: dict[str, Any], sparsities: Sequence[str], budget: str, timeout: int
) -> Iterator[dict[str, Any]]:
    """One result for each sparsity, whatever becomes of the process."""
    about = {"file": name} | {key: entry[key] for key in ("model", "library", "exporter", "axes")}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        documents, failure = _documents(
            [str(folder / name), scratch, json.dumps(entry["shapes"]), *sparsities, "--budget", budget], timeout
        )
    file = documents.pop(0) if documents else {}
    failure = file.pop("error", None) or failure
    done = {document["sparsity"]: document for document in documents}
    for sparsity in sparsities:
        missing = {"sparsity": sparsity, "budget": budget, "ok": False, "stage": "analysis", "error": failure}
        if documents and failure:
            missing["stage"] = "transform"
        yield about | file | done.get(sparsity, missing)


def _documents(arguments: Sequence[str], timeout: int) -> tuple[list[dict[str, Any]], str | None]:
    """What the process printed, and why it ended early, if it did."""
    script = Path(__file__).with_name("run_one.py")
    failure: str | None = None
    try:
        done = subprocess.run(
            [sys.executable, str(script), *arguments], capture_output=True, timeout=timeout, env=single_threaded()
        )
        output = done.stdout
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["-"]
            failure = f"process ended with {done.returncode}: {lines[-1]}"
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        failure = f"TimeoutExpired: more than {timeout} s"
    return [json.loads(line) for line in output.decode().splitlines() if line.startswith("{")], failure


if __name__ == "__main__":
    main()
