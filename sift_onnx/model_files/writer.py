"""Writing a model file: tensor by tensor, and all or nothing.

A model is never assembled in memory. The small parts are serialized as usual, the large tensors are written directly
into the protobuf stream (or into the data file), so that peak memory is one piece of one tensor above what the model
itself takes. The graph comes last in the stream: a file that is cut off has none.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import onnx

from sift_onnx.errors import UnsupportedError
from sift_onnx.files.atomic import atomic_file, resolve_links, sync
from sift_onnx.files.wire import GRAPH, INITIALIZER, SPARSE_INITIALIZER, key, varint
from sift_onnx.graphs.constant_tensors import full_tensor, has_raw_bytes, header_of
from sift_onnx.model_files.data_files import free_data_path, own_data_files
from sift_onnx.model_files.dense_stream import LargeTensor
from sift_onnx.model_files.reader import STREAMED_FROM
from sift_onnx.model_files.sparse_stream import LargeSparseTensor

__all__ = ["PROTOBUF_LIMIT", "STREAMED_FROM", "LargeTensor", "ModelParts", "Progress", "write_model"]

# Called with the bytes that are done, and with all of them.
Progress = Callable[[int, int], None]

# A protobuf message, and with it a model file, is limited to 2 GiB; the margin is for what is counted approximately.
PROTOBUF_LIMIT = 2**31 - 2**24

# Weights that are drawn or read in parallel while one is written: drawing takes longer than writing.
_AHEAD = 2

# Page alignment lets readers map a tensor without copying it.
_ALIGNMENT = 4096


@dataclass(frozen=True)
class ModelParts:
    """A model cut into what is serialized as a whole and what is streamed.

    Attributes:
        fields: everything but the graph.
        graph: the graph without its large initializers.
        large: the large initializers, dense and sparse.
    """

    fields: onnx.ModelProto
    graph: onnx.GraphProto
    large: Sequence[LargeTensor | LargeSparseTensor]


def write_model(
    parts: ModelParts, path: Path, *, external_from: int | None = None, progress: Progress | None = None
) -> Path | None:
    """Write the model to ``path``; where one file would pass 2 GB, its large tensors go to a data file.

    The data file of a model that is being replaced is removed once the new model is in place.

    Args:
        parts: the model.
        path: the target.
        external_from: size in bytes from which large tensors go to the data file in any case.
        progress: called now and then with the bytes of large tensors that have been written, and with all of them.

    Returns:
        The data file, if there is one.

    Raises:
        OutputError: a file cannot be written.
        UnsupportedError: the graph without its large tensors already passes 2 GB.
    """
    size = parts.fields.ByteSize() + parts.graph.ByteSize()
    if size >= PROTOBUF_LIMIT:
        raise UnsupportedError(
            f"{path}: {size / 2**30:.1f} GiB that can only lie in the model file itself (constants in "
            "nodes and subgraphs, strings) do not fit in it"
        )
    replaced = own_data_files(path)
    outside = [t for t in parts.large if external_from is not None and t.nbytes >= external_from]
    inside = [t for t in parts.large if external_from is None or t.nbytes < external_from]
    if size + sum(tensor.size() for tensor in inside) >= PROTOBUF_LIMIT:
        outside, inside = list(parts.large), []
    count = _counter(progress, sum(tensor.nbytes for tensor in parts.large))
    data_path = None
    if outside:
        data_path = _write_with_data_file(ModelParts(parts.fields, parts.graph, inside), outside, path, count)
    else:
        with atomic_file(path) as file:
            _write_stream(parts, file, count)
    for old in replaced:
        with contextlib.suppress(OSError):
            old.unlink()
    return data_path


def _counter(progress: Progress | None, total: int) -> Callable[[int], None]:
    done = 0

    def count(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(min(done, total), total)

    return count


def _write_stream(parts: ModelParts, file: BinaryIO, count: Callable[[int], None]) -> None:
    head = parts.graph.SerializeToString(deterministic=True)
    sizes = [tensor.size() for tensor in parts.large]
    keys = [_key(tensor) + varint(size) for tensor, size in zip(parts.large, sizes, strict=True)]
    file.write(parts.fields.SerializeToString(deterministic=True))
    file.write(key(GRAPH) + varint(len(head) + sum(map(len, keys)) + sum(sizes)))
    file.write(head)
    for prefix, tensor in zip(keys, _loaded_ahead(parts.large), strict=True):
        file.write(prefix)
        for piece in tensor.pieces():
            file.write(piece)
            count(len(piece))


def _key(tensor: LargeTensor | LargeSparseTensor) -> bytes:
    return key(SPARSE_INITIALIZER if isinstance(tensor, LargeSparseTensor) else INITIALIZER)


def _loaded_ahead(
    tensors: Sequence[LargeTensor | LargeSparseTensor],
) -> Iterator[LargeTensor | LargeSparseTensor]:
    """The tensors in order; while one is written, the weights of the next ones are drawn or read."""
    with ThreadPoolExecutor(_AHEAD, "sift-onnx-load") as threads:
        ahead = deque(threads.submit(tensor.load) for tensor in tensors[:_AHEAD])
        for i, tensor in enumerate(tensors):
            held = ahead.popleft().result()  # as long as the tensor is written
            if i + _AHEAD < len(tensors):
                ahead.append(threads.submit(tensors[i + _AHEAD].load))
            yield tensor
            del held


def _write_with_data_file(
    parts: ModelParts, outside: Sequence[LargeTensor | LargeSparseTensor], path: Path, count: Callable[[int], None]
) -> Path:
    data_path = free_data_path(resolve_links(path))
    graph = deepcopy(parts.graph)
    made = None
    try:
        # Both are complete before either takes its name, the data first.
        with atomic_file(path) as file, atomic_file(data_path) as data:
            made = os.fstat(file.fileno())
            for tensor in _loaded_ahead(outside):
                if isinstance(tensor, LargeSparseTensor):
                    stub = tensor.stub()
                    for part, nbytes, chunks in tensor.data():
                        _write_data(getattr(stub, part), nbytes, chunks, data, data_path.name, count)
                    graph.sparse_initializer.append(stub)
                else:
                    graph.initializer.append(_write_external(tensor, data, data_path.name, count))
            _write_stream(ModelParts(parts.fields, graph, parts.large), file, count)
            sync(file)
    except BaseException:
        # A model that was in place when the user interrupted needs its data.
        with contextlib.suppress(OSError):
            if made is None or not _is_there(path, made):
                data_path.unlink()
        raise
    return data_path


def _is_there(path: Path, made: os.stat_result) -> bool:
    return path.exists() and os.path.samestat(path.stat(), made)


def _write_external(
    tensor: LargeTensor, data: BinaryIO, location: str, count: Callable[[int], None]
) -> onnx.TensorProto:
    if not has_raw_bytes(tensor.constant):
        return full_tensor(tensor.constant, tensor.known)
    header = header_of(tensor.constant, tensor.known)
    _write_data(header, tensor.nbytes, tensor.chunks(), data, location, count)
    return header


def _write_data(
    header: onnx.TensorProto,
    nbytes: int,
    chunks: Iterator[memoryview],
    data: BinaryIO,
    location: str,
    count: Callable[[int], None],
) -> None:
    data.write(b"\0" * (-data.tell() % _ALIGNMENT))
    header.data_location = onnx.TensorProto.EXTERNAL
    entries = {"location": location, "offset": data.tell(), "length": nbytes}
    for name, value in entries.items():
        header.external_data.add(key=name, value=str(value))
    for chunk in chunks:
        data.write(chunk)
        count(len(chunk))
