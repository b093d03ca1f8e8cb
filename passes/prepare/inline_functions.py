"""Replace calls of model-local functions, and choices that are decided, by their bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sift_onnx.analysis.inlining import inline_bodies
from sift_onnx.graphs.branches import conditions
from sift_onnx.model import Model
from sift_onnx.passes.base import Pass, PassResult

__all__ = ["InlineFunctions"]


@dataclass(frozen=True)
class InlineFunctions(Pass):
    """Replace calls of model-local functions, and each ``If`` that constants and known sizes decide, by their bodies.

    torch exports ``tile`` with such a choice, and no sizes are known behind one.

    Requires: nothing. Ensures: no local functions are left, the outputs are the same. Initializers of the main graph
    are not touched.
    """

    name: ClassVar[str] = "inline-functions"

    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report lists the functions, and what the choices were made by.

        Raises:
            UnsupportedError: onnx cannot inline them.
        """
        names = [f"{function.domain}::{function.name}" for function in model.graph.functions]
        inlined = inline_bodies(model)
        left = conditions(inlined.graph)
        decided = [name for name in conditions(model.graph) if name not in left]
        return PassResult(inlined, inlined is not model, {"functions": names, "decided": decided})
