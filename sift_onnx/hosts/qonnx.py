"""Passes as transformations of QONNX, and so in the steps of FINN.

    from sift_onnx.hosts.qonnx import SiftTransformation
    from sift_onnx.passes import Prune

    model = ModelWrapper("in.onnx").transform(SiftTransformation(Prune("0.5")))

QONNX works on a copy of its model by default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sift_onnx.hosts.missing import missing

if TYPE_CHECKING:
    from sift_onnx.passes.base import Pass

try:
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.transformation.base import Transformation
except ImportError as error:
    raise missing("qonnx", error) from error

__all__ = ["SiftTransformation"]


class SiftTransformation(Transformation):  # type: ignore[misc]  # QONNX has no type information
    """A pass of this package on a ``ModelWrapper``.

    Attributes:
        report: of the last call.
    """

    def __init__(self, pass_: Pass) -> None:
        """Wrap ``pass_``."""
        super().__init__()
        self.pass_ = pass_
        self.report: dict[str, Any] = {}

    def apply(self, model: ModelWrapper) -> tuple[ModelWrapper, bool]:
        """The wrapper with the model after the pass, and False: a pass needs no second run.

        Raises:
            SiftError: see the pass.
        """
        result = self.pass_(model.model)
        self.report = dict(result.report)
        if result.changed:
            model.model = result.model.to_proto()
        return model, False
