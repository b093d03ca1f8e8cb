"""Replace calls of model-local functions by their bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sift_onnx.analysis.inlining import inline_functions
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
        names = [f"{function.domain}::{function.name}" for function in model.graph.functions]
        return PassResult(inline_functions(model), bool(names), {"functions": names})
