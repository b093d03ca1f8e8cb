"""Model files read without the data of their large tensors, which stays in the file until it is used."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from sift_onnx.errors import ModelReadError
from sift_onnx.files.detached_data import CutOutData
from sift_onnx.files.file_bytes import FileBytes, FileSlice
from sift_onnx.files.wire import cut_out_data
from sift_onnx.model_files.other_formats import other_format
from sift_onnx.model_files.paths import check_input

__all__ = ["STREAMED_FROM", "parse_model", "read_content", "read_model", "refuse_incomplete"]

# Smaller tensors are parsed, and serialized, with the graph.
STREAMED_FROM = 1 << 16

# A smaller file is read whole, and not kept open.
_KEPT_OPEN_FROM = 1 << 20


def read_model(path: Path) -> tuple[onnx.ModelProto, CutOutData]:
    """The model that ``path`` holds, without the data of its large initializers, and where that is.

    Raises:
        ModelReadError: the file is missing, cannot be read, or is not an ONNX model.
    """
    try:
        check_input(path)
        content, cut = read_content(path)
    except FileNotFoundError as error:
        raise ModelReadError(f"{path}: no such file") from error
    except OSError as error:
        raise ModelReadError(f"cannot read {path}: {error.strerror or error}") from error
    if not content:
        raise ModelReadError(f"{path} is empty; export it again")
    return parse_model(content, str(path)), cut


def parse_model(content: bytes, what: str) -> onnx.ModelProto:
    """A serialized model; ``what`` it is, for errors.

    Raises:
        ModelReadError: it is not an ONNX model.
    """
    found = other_format(content)
    try:
        proto = onnx.ModelProto.FromString(content)
    except DecodeError as error:
        if found is not None:
            raise ModelReadError(f"{what} is not an ONNX model: it is {found}") from error
        raise ModelReadError(f"{what} is not an ONNX model, or is truncated; export or copy it again") from error
    if found is not None and not _is_complete(proto):
        raise ModelReadError(f"{what} is not an ONNX model: it is {found}")
    refuse_incomplete(proto, what)
    return proto


def refuse_incomplete(proto: onnx.ModelProto, what: str) -> None:
    """Refuse a model without a graph or operators; ``what`` it is, for errors.

    Raises:
        ModelReadError: it is one.
    """
    if not _is_complete(proto):
        raise ModelReadError(f"{what} is not an ONNX model, or is truncated: it has no graph or no opset")


def _is_complete(proto: onnx.ModelProto) -> bool:
    return proto.HasField("graph") and len(proto.opset_import) > 0


def read_content(path: Path) -> tuple[bytes, CutOutData]:
    """The serialized model that ``path``, a file or a pipe, holds, without the data of its large initializers.

    Returns:
        The serialized model, and what was left out, see :func:`~sift_onnx.files.wire.cut_out_data`. A file that is
        damaged or unusual is read whole.

    Raises:
        OSError: it cannot be read.
    """
    if path.is_file() and path.stat().st_size >= _KEPT_OPEN_FROM:
        file = FileBytes(path)
        content, cut = cut_out_data(file.map(), STREAMED_FROM)
        failure = f"cannot read the data of its initializers from {path}"
        return content, {at: FileSlice(file, r.start, len(r), failure) for at, r in cut.items()}
    data = path.read_bytes()
    content, cut = cut_out_data(data, STREAMED_FROM)
    return content, {at: memoryview(data)[r.start : r.stop] for at, r in cut.items()}
