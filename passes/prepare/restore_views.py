"""Turn views that were written as look-ups of every element back into reshapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sift_onnx.analysis.strided_views import with_restored_views
from sift_onnx.model import Model
from sift_onnx.passes.base import Pass, PassResult

__all__ = ["RestoreViews"]


@dataclass(frozen=True)
class RestoreViews(Pass):
    """Replace a Gather that reads every element of a flattened tensor once, in order of strides, by a Reshape.

    torch's ``as_strided``, which global pooling leaves in a ConvNeXt, is exported so; see
    :mod:`sift_onnx.analysis.strided_views` for when that is a view of the whole.

    Requires: nothing. Ensures: the same outputs. A view that leaves elements out, or repeats them, stays what it is.
    """

    name: ClassVar[str] = "restore-views"

    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report lists the tensors that became reshapes."""
        restored_model, restored = with_restored_views(model)
        return PassResult(restored_model, bool(restored), {"restored": restored})
