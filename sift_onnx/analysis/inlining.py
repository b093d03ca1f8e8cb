"""Bodies of local functions and of decided branches: what analyses and back ends see of a model is its main graph."""

from __future__ import annotations

import onnx.inliner
import onnx_graphsurgeon as gs

from sift_onnx.errors import UnsupportedError
from sift_onnx.graphs.constants import share_values
from sift_onnx.graphs.exporting import graph_constants
from sift_onnx.graphs.importing import import_model
from sift_onnx.model import Model
from sift_onnx.shapes.decided_branches import with_decided_branches

__all__ = ["inline_bodies"]


def inline_bodies(model: Model) -> Model:
    """The same model with bodies in the place of what stands for them; itself if there is none.

    Those are local functions, and branches of each ``If`` that goes the same way in every run, see
    :mod:`sift_onnx.shapes.decided_branches`. Initializers of the main graph are not touched.

    Args:
        model: is not changed; values of constants are shared.

    Raises:
        UnsupportedError: onnx cannot inline its local functions.
    """
    return with_decided_branches(_without_functions(model))


def _without_functions(model: Model) -> Model:
    if not model.graph.functions:
        return model
    try:
        inlined = onnx.inliner.inline_local_functions(model.skeleton())
    except Exception as error:  # native code: a damaged model makes it fail in many ways
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UnsupportedError(f"its local functions cannot be inlined: {reason[0]}") from error
    graph = import_model(inlined)
    _adopt_constants(graph, model)
    return Model(graph, dict(model.metadata), inlined, model.path)


def _adopt_constants(graph: gs.Graph, model: Model) -> None:
    """Give the initializers of ``graph``, which came without their data, the values that ``model`` holds."""
    originals = graph_constants(model.graph, model.origin.graph)
    for level in [graph, *graph.subgraphs(recursive=True)]:
        for name, tensor in level.tensors().items():
            known = originals.get(name)
            if known is not None and isinstance(tensor, gs.Constant):
                share_values(tensor, known)
