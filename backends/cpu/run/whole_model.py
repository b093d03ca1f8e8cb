"""A session of onnxruntime on a whole model that has layers in kernels too, opened when it is timed against them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from sift_onnx.backends.base import CompileOptions, ModelSource
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.subgraph import Subgraph
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.errors import BackendError
from sift_onnx.graphs.constants import is_masked, nbytes_of, stored_values_of
from sift_onnx.model import Model

__all__ = ["SourceFile", "may_be_opened", "whole_model"]

# Weights that are held sparse are made dense for onnxruntime: up to this many bytes of them.
_MOST_DENSIFIED = 32 << 20


@dataclass(frozen=True)
class SourceFile:
    """A model's file, which may be read again later.

    Attributes:
        path: of the file.
        identity: of what was there when the session was created; None if it was gone.
    """

    path: str
    identity: tuple[int, int, int] | None

    @classmethod
    def of(cls, model: object) -> SourceFile | None:
        """Of a model that was given as a path; None for others."""
        if not isinstance(model, (str, os.PathLike)):
            return None
        path = os.fspath(model)
        return cls(path, _identity(path))

    def check(self) -> None:
        """Raise a :class:`BackendError` if the file is another one now."""
        if self.identity is None or _identity(self.path) != self.identity:
            raise BackendError(f"{self.path!r} has changed since the session was created")


def may_be_opened(graph: GraphView) -> bool:
    """Whether onnxruntime may have the whole model: not where it would make large sparse weights dense."""
    sparse = [one for one in graph.constants.values() if is_masked(one) and stored_values_of(one) is None]
    return sum(map(nbytes_of, sparse)) <= _MOST_DENSIFIED


def whole_model(
    model: ModelSource | Model, graph: GraphView | None, options: CompileOptions, is_kept: bool
) -> Callable[[], OnnxRuntimeProgram]:
    """What opens the session.

    Args:
        model: as it was given. A file is read again, if it is still the same; onnxruntime knows best how.
        graph: the model as it was read. A model from memory is held by it, and shares its large constants with the
            session. None where the model was not read; then it is opened as it was given.
        options: of the session.
        is_kept: whether a model from memory is held. Without it, there is nothing to open.

    Returns:
        A function that raises a :class:`BackendError` where the file has changed, or the model was not kept.
    """
    file = SourceFile.of(model)
    if file is not None:

        def from_file() -> OnnxRuntimeProgram:
            file.check()
            return OnnxRuntimeProgram(file.path, options)

        return from_file
    if not is_kept:

        def not_kept() -> OnnxRuntimeProgram:
            raise BackendError("the model came from memory, and was not kept since the kernels looked faster")

        return not_kept

    def from_memory() -> OnnxRuntimeProgram:
        if graph is None:
            return OnnxRuntimeProgram(model.to_proto() if isinstance(model, Model) else model, options)
        whole = Subgraph.of(graph, range(len(graph.nodes)), graph.inputs, graph.outputs)
        return OnnxRuntimeProgram(whole.model, options, whole.arrays)

    return from_memory


def _identity(path: str) -> tuple[int, int, int] | None:
    """Of a file, as it is now; None if it is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
