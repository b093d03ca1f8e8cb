"""Writing a model file: tensor by tensor, and all or nothing.

A model is never assembled in memory. The small parts are serialized as usual, the large tensors are written straight
into their place in the protobuf stream (or into the data file beside it), so that peak memory is one piece of one
tensor above what the model itself takes.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import onnx
import onnx_graphsurgeon as gs

from sift_onnx.constants import byte_chunks, full_tensor, header_of, nbytes_of
from sift_onnx.errors import OutputError, UnsupportedError

__all__ = ["ModelParts", "atomic_file", "check_output", "write_model"]

# A protobuf message, and with it a model file, is limited to 2 GiB; the margin is for what is counted approximately.
PROTOBUF_LIMIT = 2**31 - 2**24
# Smaller tensors are serialized with the graph.
STREAMED_FROM = 1 << 16

_LENGTH_DELIMITED = 2


@dataclass(frozen=True)
class ModelParts:
    """A model cut into what is serialized as a whole and what is streamed.

    Attributes:
        fields: everything but the graph.
        graph: the graph without its large initializers.
        large: the large initializers.
    """

    fields: onnx.ModelProto
    graph: onnx.GraphProto
    large: list[gs.Constant]


def check_output(path: Path, force: bool) -> None:
    """Refuse a target early, before any work is done.

    Raises:
        OutputError: the folder is missing, the file exists and ``force`` is off, or the path is a folder.
    """
    if path.is_dir():
        raise OutputError(f"{path} is a folder; name a file")
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {path}: the folder {path.parent} does not exist")
    if path.exists() and not force:
        raise OutputError(f"{path} exists already; use --force to overwrite it")


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` when the block ends without an error, and vanishes otherwise.

    Raises:
        OutputError: the file cannot be written.
    """
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        with os.fdopen(handle, "wb", buffering=1 << 20) as file:
            yield file
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def write_model(parts: ModelParts, path: Path) -> None:
    """Write the model to ``path``; large tensors go to a data file beside it where one file would pass 2 GB.

    Raises:
        OutputError: a file cannot be written.
        UnsupportedError: the graph without its large tensors already passes 2 GB.
    """
    size = parts.fields.ByteSize() + parts.graph.ByteSize()
    if size >= PROTOBUF_LIMIT:
        raise UnsupportedError(
            f"{path}: {size / 2**30:.1f} GiB cannot be stored in one ONNX file; use --storage dense, "
            "which puts large weights beside it"
        )
    if size + sum(nbytes_of(c) for c in parts.large) < PROTOBUF_LIMIT:
        with atomic_file(path) as file:
            _write_stream(parts, file)
        return
    taken = _data_files_of(path)
    # Data of the model that is being replaced goes with it, once the new model is in place.
    replaced = taken if path.exists() else []
    data_path = _free_data_path(path, taken)
    with atomic_file(path) as file:
        with atomic_file(data_path) as data:
            for constant in parts.large:
                parts.graph.initializer.append(_write_external(constant, data, data_path.name))
        _write_stream(ModelParts(parts.fields, parts.graph, []), file)
    for old in replaced:
        old.unlink(missing_ok=True)


def _write_stream(parts: ModelParts, file: BinaryIO) -> None:
    fields = parts.fields.SerializeToString(deterministic=True)
    head = parts.graph.SerializeToString(deterministic=True)
    frames = [_tensor_frame(constant) for constant in parts.large]
    initializer = onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number
    keys = [_key(initializer) + _varint(length) for length, _, _ in frames]
    graph_size = len(head) + sum(len(key) + frame[0] for key, frame in zip(keys, frames, strict=True))
    file.write(fields)
    file.write(_key(onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number) + _varint(graph_size))
    file.write(head)
    for key, (_, front, constant) in zip(keys, frames, strict=True):
        file.write(key)
        file.write(front)
        chunks = byte_chunks(constant)
        if chunks is not None:
            for chunk in chunks:
                file.write(chunk)


def _tensor_frame(constant: gs.Constant) -> tuple[int, bytes, gs.Constant]:
    """Length of the serialized tensor, what comes before its raw bytes, and the tensor."""
    if byte_chunks(constant) is None:
        whole = full_tensor(constant).SerializeToString(deterministic=True)
        return len(whole), whole, constant
    count = nbytes_of(constant)
    raw = _key(onnx.TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number) + _varint(count)
    front = header_of(constant).SerializeToString(deterministic=True) + raw
    return len(front) + count, front, constant


def _write_external(constant: gs.Constant, data: BinaryIO, location: str) -> onnx.TensorProto:
    chunks = byte_chunks(constant)
    if chunks is None:
        return full_tensor(constant)
    header = header_of(constant)
    # Page alignment lets readers map a tensor without copying it.
    data.write(b"\0" * (-data.tell() % 4096))
    header.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", data.tell()), ("length", nbytes_of(constant))):
        header.external_data.add(key=key, value=str(value))
    for chunk in chunks:
        data.write(chunk)
    return header


def _data_files_of(path: Path) -> list[Path]:
    """Data files of our naming that lie beside ``path``; an older version of the model may be reading them."""
    pattern = re.compile(re.escape(path.name) + r"\.data\d*$")
    return [p for p in path.parent.iterdir() if pattern.match(p.name)]


def _free_data_path(path: Path, taken: list[Path]) -> Path:
    candidate, i = path.with_name(path.name + ".data"), 1
    while candidate in taken:
        candidate = path.with_name(f"{path.name}.data{i}")
        i += 1
    return candidate


def _varint(n: int) -> bytes:
    encoded = bytearray()
    while n >= 0x80:
        encoded.append(n & 0x7F | 0x80)
        n >>= 7
    encoded.append(n)
    return bytes(encoded)


def _key(field_number: int) -> bytes:
    return _varint(field_number << 3 | _LENGTH_DELIMITED)
