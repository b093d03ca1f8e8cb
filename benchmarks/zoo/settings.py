"""What both halves of the zoo agree on: exporters, file names, and the index of exports."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["AXES", "EXPORTERS", "FOLDER", "file_name", "read_index", "single_threaded", "write_index"]

# Name -> which of torch's exporters, and the opset.
EXPORTERS = {"torchscript17": ("torchscript", 17), "dynamo20": ("dynamo", 20), "dynamo23": ("dynamo", 23)}
AXES = ("static", "dynamic")
# Where exports lie unless told otherwise, from the top of the repository.
FOLDER = Path(__file__).parents[2] / "build" / "zoo"

_INDEX = "index.json"

Index = dict[str, dict[str, Any]]


def file_name(model: str, exporter: str, axes: str) -> str:
    """Name of the file of one export."""
    return f"{model}-{exporter}-{axes}.onnx"


def read_index(folder: Path) -> Index:
    """What is known of the exports in ``folder``, by file name."""
    path = folder / _INDEX
    found: Index = json.loads(path.read_text())["exports"] if path.exists() else {}
    return found


def write_index(folder: Path, exports: Index) -> None:
    """Replace the index of ``folder``; a reader finds the old one or the new one."""
    draft = folder / f"{_INDEX}.draft"
    draft.write_text(json.dumps({"schema": 1, "exports": exports}, indent=1))
    draft.replace(folder / _INDEX)


def single_threaded() -> dict[str, str]:
    """The environment for a process that is to keep to one core."""
    return dict(os.environ) | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
