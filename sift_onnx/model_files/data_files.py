"""Data files of models: a free name for a new one, and those that a replaced model leaves unused."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from sift_onnx.files.atomic import resolve_links
from sift_onnx.files.external_data import external_tensors
from sift_onnx.model_files.reader import read_content

__all__ = ["free_data_path", "own_data_files"]


def _is_data_name(name: str, model: Path) -> bool:
    return re.fullmatch(re.escape(model.name) + r"\.data\d*", name) is not None


def own_data_files(path: Path) -> list[Path]:
    """Data files named as ours are that the model at ``path`` refers to, and no other model in its folder."""
    try:
        model = resolve_links(path)
        siblings = list(model.parent.iterdir())
        candidates = [p for p in siblings if _is_data_name(p.name, model)]
        if not candidates or not model.is_file():
            return []
        content, _ = read_content(model)
        proto = onnx.ModelProto.FromString(content)
        used = {e.value for tensor in external_tensors(proto) for e in tensor.external_data if e.key == "location"}
        others = [p for p in siblings if p.suffix == ".onnx" and p.name != model.name and p.is_file()]
        return [p for p in candidates if p.name in used and not any(_mentions(other, p.name) for other in others)]
    except (OSError, DecodeError):
        return []


def _mentions(file: Path, name: str) -> bool:
    if not file.stat().st_size:
        return False
    with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(name.encode()) >= 0


def free_data_path(model: Path) -> Path:
    """A name that no file has: existing ones may be in use by another model, or by an older version of this one."""
    candidate, i = model.with_name(f"{model.name}.data"), 1
    while candidate.exists() or candidate.is_symlink():
        candidate, i = model.with_name(f"{model.name}.data{i}"), i + 1
    return candidate
