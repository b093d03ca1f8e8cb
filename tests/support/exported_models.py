"""Exports that several tests begin with: each is made once in a process."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from sift_onnx.models import export

__all__ = ["export_once"]


def export_once(name: str, path: Path, **settings: Any) -> Path:
    """:func:`sift_onnx.models.export` to one file; returns ``path``."""
    path.write_bytes(_exported(name, tuple(sorted(settings.items()))))
    return path


@lru_cache(maxsize=8)
def _exported(name: str, settings: tuple[tuple[str, Any], ...]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        export(name, path, **dict(settings))
        return path.read_bytes()
