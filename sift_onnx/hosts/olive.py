"""Passes as surgeries of Olive's pass ``GraphSurgeries``: one surgeon for each, named ``Sift`` and the pass's class.

    {"type": "GraphSurgeries", "surgeries": [{"surgeon": "SiftWide", "sparsity": "0.9"}]}

Surgeons are known once this module is imported. In a program, import it; for the command line, name this module in the
package configuration (``olive run --package-config``) as the place of ``GraphSurgeries``. Olive merges initializers of
equal value after its surgeries unless ``remove_duplicate_initializers`` is false: the parameters that a pass has set
apart are tied again then.
"""

from __future__ import annotations

import inspect
from typing import Any

import onnx

from sift_onnx import passes
from sift_onnx.hosts.missing import missing
from sift_onnx.passes.base import Pass
from sift_onnx.passes.declared_settings import make

try:
    from olive.passes.onnx.graph_surgeries import GraphSurgeries, Surgeon
except ImportError as error:
    raise missing("olive-ai", error) from error

__all__ = ["GraphSurgeries", "register_surgeon"]


def register_surgeon(pass_class: type[Pass]) -> type[Surgeon]:
    """Make a pass known to Olive; those of this package are already.

    Its settings are those of the pass's constructor, checked in the same way as those of a recipe.

    Args:
        pass_class: the pass; the surgeon is named after the class.
    """

    def init(self: Surgeon, **settings: Any) -> None:
        self.pass_ = make(pass_class, settings)

    def call(self: Surgeon, model: onnx.ModelProto) -> onnx.ModelProto:
        result = self.pass_(model)
        return result.model.to_proto() if result.changed else model

    # Olive hands over those settings alone that it finds in the signature.
    init.__signature__ = inspect.signature(pass_class.__init__)  # type: ignore[attr-defined]
    members = {"__doc__": pass_class.__doc__, "__module__": __name__, "__init__": init, "__call__": call}
    return type(f"Sift{pass_class.__name__}", (Surgeon,), members)


for _name in passes.__all__:
    _pass = getattr(passes, _name)
    # A file cannot hold the calibration data that InsertBatchNorm asks for.
    if inspect.isclass(_pass) and issubclass(_pass, Pass) and _pass not in (Pass, passes.InsertBatchNorm):
        register_surgeon(_pass)
