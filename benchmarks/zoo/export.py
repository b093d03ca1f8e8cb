"""Export the zoo: every model of ``catalogue.py`` with three exporters, its batch axis fixed and open.

    python benchmarks/zoo/export.py --folder build/zoo --model 'resnet*'

Needs torch, onnx, onnxscript, timm, torchvision and transformers, but downloads nothing. What exists is skipped. How
each export went is in ``index.json`` beside the files.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
from catalogue import MODELS, ZooModel
from settings import AXES, EXPORTERS, FOLDER, file_name, read_index, single_threaded, write_index

__all__ = ["main"]

_LIBRARIES = ("torch", "onnx", "onnxscript")


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), default=FOLDER, help="Where the files go.")
@click.option("--model", "models", multiple=True, default=("*",), help="Glob over model names (repeatable).")
@click.option("--exporter", "exporters", multiple=True, type=click.Choice(list(EXPORTERS)), default=list(EXPORTERS))
@click.option("--axes", multiple=True, type=click.Choice(AXES), default=AXES)
@click.option("--timeout", type=int, default=900, show_default=True, help="Seconds for one export.")
@click.option("--retry", is_flag=True, help="Repeat exports that failed before.")
def main(
    folder: Path, models: Sequence[str], exporters: Sequence[str], axes: Sequence[str], timeout: int, retry: bool
) -> None:
    """Export the zoo; what exists is skipped."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [model for model in MODELS if any(fnmatch(model.name, glob) for glob in models)]
    for model in chosen:
        for exporter in exporters:
            for kind in axes:
                name = file_name(model.name, exporter, kind)
                index = read_index(folder)
                known = index.get(name)
                if known and ((folder / name).exists() or (known["error"] and not retry)):
                    continue
                index[name] = _describe(model, exporter, kind) | _export(model.name, exporter, kind, folder, timeout)
                write_index(folder, index)
                click.echo(f"{name}: {index[name]['error'] or 'ok'} ({index[name]['seconds']:.0f} s)")


def _describe(model: ZooModel, exporter: str, axes: str) -> dict[str, Any]:
    """What is known of an export beforehand."""
    used = slice(None) if axes == "dynamic" else slice(1)
    return {
        "model": model.name,
        "library": model.library,
        "exporter": exporter,
        "axes": axes,
        "note": model.note,
        "shapes": {value.name: value.shapes[used] for value in model.inputs},
        "versions": {name: _version(name) for name in dict.fromkeys((*_LIBRARIES, model.library))},
    }


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _export(model: str, exporter: str, axes: str, folder: Path, timeout: int) -> dict[str, Any]:
    """Export in a process of its own; the file gets its name once it is complete."""
    target = folder / file_name(model, exporter, axes)
    draft, record = target.with_suffix(".draft"), target.with_suffix(".json")
    script = Path(__file__).with_name("export_one.py")
    command = [sys.executable, str(script), model, exporter, axes, str(draft), str(record)]
    failed: dict[str, Any] = {"seconds": float(timeout), "error": f"TimeoutExpired: more than {timeout} s"}
    try:
        done = subprocess.run(command, timeout=timeout, env=single_threaded(), capture_output=True, text=True)
        lines = done.stderr.strip().splitlines() or ["-"]
        failed = {"seconds": 0.0, "error": f"process ended with {done.returncode}: {lines[-1]}"}
        outcome: dict[str, Any] = json.loads(record.read_text()) if record.exists() else failed
    except subprocess.TimeoutExpired:
        outcome = failed
    finally:
        record.unlink(missing_ok=True)
    if outcome["error"] is None:
        draft.replace(target)
        return outcome | {"bytes": target.stat().st_size}
    draft.unlink(missing_ok=True)
    return outcome


if __name__ == "__main__":
    main()
