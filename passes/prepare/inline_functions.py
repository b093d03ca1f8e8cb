"""Replace calls of model-local functions by their bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx
import onnx.inliner
import onnx_graphsurgeon as gs

from sift_onnx.errors import UnsupportedError
from sift_onnx.graphs.constants import share_values
from sift_onnx.graphs.importing import import_model
from sift_onnx.model import Model
from sift_onnx.passes.base import Pass, PassResult

__all__ = ["InlineFunctions"]


@dataclass(frozen=True)
class InlineFunctions(Pass):
    """Replace calls of model-local functions by their bodies.

    Requires: nothing. Ensures: no local functions are left, the outputs are the same. Initializers are not touched:
    functions have none.
    """

    name: ClassVar[str] = "inline-functions"

    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report lists the functions.

        Raises:
            UnsupportedError: onnx cannot inline them.
        """
        if not model.graph.functions:
            return PassResult(model, False, {"functions": []})
        names = [f"{function.domain}::{function.name}" for function in model.graph.functions]
        try:
            inlined = onnx.inliner.inline_local_functions(model.skeleton())
        except Exception as error:  # native code: a damaged model makes it fail in many ways
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise UnsupportedError(f"its local functions cannot be inlined: {reason[0]}") from error
        graph = import_model(inlined)
        _adopt_constants(graph, model)
        return PassResult(Model(graph, dict(model.metadata), inlined, model.path), True, {"functions": names})


def _adopt_constants(graph: gs.Graph, model: Model) -> None:
    """Give the initializers of ``graph``, which came without their data, the values that ``model`` holds."""
    originals = model.initializers()
    for level in [graph, *graph.subgraphs(recursive=True)]:
        for name, tensor in level.tensors().items():
            known = originals.get(name)
            if known is not None and isinstance(tensor, gs.Constant):
                share_values(tensor, known)
