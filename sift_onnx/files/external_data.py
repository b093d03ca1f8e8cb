"""External data: files next to the model are found, checked, and read when a tensor is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.errors import ModelReadError
from sift_onnx.files.file_bytes import FileBytes, FileSlice

__all__ = ["DataFiles", "RawData", "external_tensors", "is_external"]

# Gives the little-endian bytes of a tensor, as a vector.
RawData = Callable[[], "npt.NDArray[np.uint8]"]

# An open file stays readable when it is removed or replaced, but costs a file descriptor, of which there may be 1024.
_KEPT_OPEN = 64

_WITHOUT_TENSORS = frozenset(
    map(onnx.AttributeProto.AttributeType.Value, "FLOAT INT STRING FLOATS INTS STRINGS".split())
)


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether the tensor's data lies outside the model file."""
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


class DataFiles:
    """The data files of one model file."""

    def __init__(self, model: Path) -> None:
        """The files in the folder of ``model``, or of the file that it links to."""
        self._folder = model.parent
        # A download cache keeps a model and its data as links into one folder of blobs.
        self._roots = (model.parent.resolve(), model.resolve().parent)
        self._files: dict[Path, FileBytes] = {}

    def find(self, tensor: onnx.TensorProto, nbytes: int) -> FileSlice:
        """Check that the data of ``tensor`` is there, without reading it.

        Args:
            tensor: the stub in the model, with its ``external_data`` entries.
            nbytes: size of its data, by its shape and data type.

        Raises:
            ModelReadError: the file is missing, too short, or outside the model's folder; the message names both.
        """
        entries = {entry.key: entry.value for entry in tensor.external_data}
        # Protobuf returns bytes where a string is not UTF-8.
        if not all(isinstance(text, str) for text in (tensor.name, *entries, *entries.values())):
            raise ModelReadError(f"initializer {tensor.name!r}: its entries for external data are not text: {entries}")
        path = self._locate(entries.get("location", ""), tensor.name)
        try:
            offset = int(entries.get("offset", 0))
            length = int(entries.get("length", nbytes))
        except ValueError as error:
            raise ModelReadError(
                f"initializer {tensor.name!r}: its entry for data in {path} is damaged: {error}"
            ) from error
        if length != nbytes or offset < 0:
            raise ModelReadError(
                f"initializer {tensor.name!r}: {length} bytes at offset {offset} of {path} do not fit its shape "
                f"{list(tensor.dims)}, which takes {nbytes}"
            )
        failure = f"initializer {tensor.name!r}: cannot read its external data file {path}"
        try:
            file = self._open(path)
        except OSError as error:
            raise ModelReadError(f"{failure}: {error.strerror or error}") from error
        if file.size < offset + nbytes:
            raise ModelReadError(
                f"initializer {tensor.name!r}: its external data file {path} is truncated; copy it again"
            )
        return FileSlice(file, offset, nbytes, failure)

    def path_of(self, tensor: onnx.TensorProto) -> Path:
        """The file that has the data of ``tensor``.

        Raises:
            ModelReadError: it is missing, or outside the model's folder.
        """
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        return self._locate(location, tensor.name)

    def _locate(self, location: str, name: str) -> Path:
        folders = dict.fromkeys((self._folder, self._roots[1]))
        try:
            candidates = [folder / location for folder in folders if location and location.isprintable()]
            # resolve() follows links: one inside the folder may point anywhere.
            inside = [p for p in candidates if any(p.resolve().is_relative_to(root) for root in self._roots)]
            found = next((p for p in inside if p.is_file()), None)
        except (OSError, RuntimeError, ValueError) as error:
            raise ModelReadError(f"initializer {name!r}: no external data at {location!r}: {error}") from error
        if not inside:
            raise ModelReadError(
                f"initializer {name!r}: its external data path {location!r} lies outside the model's folder; refused"
            )
        if found is None:
            raise ModelReadError(
                f"initializer {name!r}: its external data file {inside[0]} is missing; copy it beside the model file"
            )
        return found

    def _open(self, path: Path) -> FileBytes:
        if path not in self._files:
            self._files[path] = FileBytes(path, keep_open=len(self._files) < _KEPT_OPEN)
        return self._files[path]


def external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of the model that has external data, in any graph, function or attribute."""
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)
        yield from _of_attributes(function.attribute_proto)
    for training in model.training_info:
        yield from _of_graph(training.initialization)
        yield from _of_graph(training.algorithm)


def _of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from filter(is_external, graph.initializer)
    for sparse in graph.sparse_initializer:
        yield from filter(is_external, (sparse.values, sparse.indices))
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        yield from _of_attributes(node.attribute)


def _of_attributes(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        if attribute.type in _WITHOUT_TENSORS:
            continue
        if attribute.HasField("t") and is_external(attribute.t):
            yield attribute.t
        yield from filter(is_external, attribute.tensors)
        sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
        for part in (*sparse, *attribute.sparse_tensors):
            yield from filter(is_external, (part.values, part.indices))
        graphs = [attribute.g] if attribute.HasField("g") else []
        for graph in (*graphs, *attribute.graphs):
            yield from _of_graph(graph)
