"""A session of onnxruntime on a whole model that has layers in kernels too, opened when it is timed against them."""

from __future__ import annotations

from collections.abc import Callable

from sift_onnx.backends.base import CompileOptions, ModelSource
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.subgraph import Subgraph
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.backends.source_files import Sources
from sift_onnx.errors import BackendError
from sift_onnx.graphs.constants import is_masked, nbytes_of, stored_values_of
from sift_onnx.model import Model

__all__ = ["may_be_opened", "whole_model"]

# Weights that are held sparse are made dense for onnxruntime: up to this many bytes of them.
_MOST_DENSIFIED = 32 << 20


def may_be_opened(graph: GraphView) -> bool:
    """Whether onnxruntime may have the whole model: not where it would make large sparse weights dense."""
    sparse = [one for one in graph.constants.values() if is_masked(one) and stored_values_of(one) is None]
    return sum(map(nbytes_of, sparse)) <= _MOST_DENSIFIED


def whole_model(
    model: ModelSource | Model,
    sources: Sources | None,
    graph: GraphView | None,
    options: CompileOptions,
    is_kept: bool,
) -> Callable[[], OnnxRuntimeProgram]:
    """What opens the session.

    Args:
        model: as it was given.
        sources: files that it is in. One is read again, if it is still the same; onnxruntime knows best how. None of a
            model from memory.
        graph: the model as it was read. A model from memory is held by it, and shares its large constants with the
            session. None where the model was not read; then it is opened as it was given.
        options: of the session.
        is_kept: whether a model from memory is held. Without it, there is nothing to open.

    Returns:
        A function that raises a :class:`BackendError` where the file has changed, or the model was not kept.
    """
    if sources is not None:

        def from_file() -> OnnxRuntimeProgram:
            files = sources.unchanged()
            return OnnxRuntimeProgram(files.path, options, files=files)

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
