"""What a packed file was made from: the bytes of a model, and all else that a plan depends on."""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import onnx

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.isa import generates_code
from sift_onnx.backends.source_files import data_files
from sift_onnx.model import Model
from sift_onnx.model_files.reader import read_model

__all__ = ["content_of_files", "content_of_model", "files_of", "setting_key"]

_BLOCK = 1 << 20


def setting_key(options: CompileOptions, isa: str) -> str:
    """Of what a plan depends on besides the model: this package, the processor, the options."""
    how = {field.name: getattr(options, field.name) for field in fields(options) if field.name != "packed_cache"}
    processor = (isa, _kernels.detected_isa(), generates_code(isa), _kernels.cache_bytes())
    machine = (sys.byteorder, platform.machine(), *processor)
    told = (_code_stamp(), machine, sorted(how.items()))
    return hashlib.sha256(msgspec.msgpack.encode(told, order="deterministic")).hexdigest()


@cache
def _code_stamp() -> tuple[Any, ...]:
    """Of what makes plans: the versions, and the files of this package, for who works on them."""
    # Where it is installed for work on it, the back ends lie elsewhere.
    folders = {Path(inspect.getfile(Model)).parent, Path(__file__).parents[2]}
    paths = {path for folder in folders for path in folder.rglob("*.*") if path.suffix in (".json", ".py")}
    stamps = []
    for path in (*sorted(paths), Path(_kernels.__file__ or __file__)):
        found = path.stat()
        stamps.append((path.name, found.st_size, found.st_mtime_ns))
    return version("sift-onnx"), version("onnx"), stamps


def files_of(path: str) -> list[str]:
    """The files that a model is stored in: its own and those of its external data.

    Raises:
        ModelReadError: it is no model, or one of them is missing.
    """
    model, _ = read_model(Path(path))
    return [os.path.abspath(path), *data_files(Path(path), model)]


def content_of_files(paths: Sequence[str]) -> str:
    """SHA-256 of what files hold, in order.

    Raises:
        OSError: one cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{os.path.getsize(path)}\n".encode())
        with open(path, "rb", buffering=0) as file:
            block = bytearray(_BLOCK)
            while count := file.readinto(block):
                digest.update(memoryview(block)[:count])
    return digest.hexdigest()


def content_of_model(model: Model | onnx.ModelProto) -> str:
    """SHA-256 of a model in memory, as its file would be.

    Raises:
        UnsupportedError: it would pass 2 GB.
    """
    proto = model.to_proto() if isinstance(model, Model) else model
    return hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()
