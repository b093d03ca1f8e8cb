"""The model as import and write-back see it, and its constants by name."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import constant_values
from sift_onnx.model import Model
from sift_onnx.passes.base import applied
from sift_onnx.passes.prepare.inline_functions import InlineFunctions
from sift_onnx.passes.prepare.lift_constants import LiftConstants
from sift_onnx.passes.prepare.unshare_initializers import UnshareInitializers

__all__ = ["prepare", "stored_constants"]


def prepare(model: Model) -> Model:
    """The same model with local functions inlined, and every parameter and running statistic in a separate tensor.

    It is deterministic, so that write-back finds the tensors that the importer saw, and returns ``model`` itself if
    there is nothing to do.
    """
    return applied(model, InlineFunctions(), LiftConstants(), UnshareInitializers(renamed_only=True))


def stored_constants(graph: gs.Graph) -> dict[str, gs.Constant]:
    """Initializers by name, and values of Constant nodes by the name of the node's output."""
    found = {name: constant_values(tensor) for name, tensor in graph.tensors().items()}
    return {name: constant for name, constant in found.items() if constant is not None}
