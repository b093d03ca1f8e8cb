"""What is done to a model before it becomes a torch module."""

from __future__ import annotations

from sift_onnx.model import Model
from sift_onnx.passes.prepare.inline_functions import InlineFunctions
from sift_onnx.passes.prepare.lift_constants import LiftConstants
from sift_onnx.passes.prepare.unshare_initializers import UnshareInitializers

__all__ = ["prepare"]


def prepare(model: Model) -> Model:
    """The same model with local functions inlined, and every parameter and running statistic in a tensor of its own.

    Deterministic, so that write-back finds the tensors that the importer saw; what is returned is ``model`` itself
    where there is nothing to do.
    """
    for pass_ in (InlineFunctions(), LiftConstants(), UnshareInitializers(renamed_only=True)):
        model = pass_(model).model
    return model
