"""Rewrite passes: each takes a model and gives a model, one file per pass.

Passes are imported on first use: one transform needs few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sift_onnx.passes.base import BUILT_IN, Pass, PassResult, get_pass, register_pass

if TYPE_CHECKING:
    from sift_onnx.passes.batch_norm.fold_batch_norm import FoldBatchNorm
    from sift_onnx.passes.batch_norm.insert_batch_norm import InsertBatchNorm
    from sift_onnx.passes.densify import Densify
    from sift_onnx.passes.doped import Doped
    from sift_onnx.passes.factorized import Factorized
    from sift_onnx.passes.low_rank import LowRank
    from sift_onnx.passes.parallel import Parallel
    from sift_onnx.passes.pipeline import recipe_of, run_recipe, transform
    from sift_onnx.passes.prepare.inference_mode import InferenceMode
    from sift_onnx.passes.prepare.inline_functions import InlineFunctions
    from sift_onnx.passes.prepare.lift_constants import LiftConstants
    from sift_onnx.passes.prepare.restore_views import RestoreViews
    from sift_onnx.passes.prepare.store_computed_parameters import StoreComputedParameters
    from sift_onnx.passes.prepare.unshare_initializers import UnshareInitializers
    from sift_onnx.passes.prune import Prune
    from sift_onnx.passes.wide import Wide

__all__ = [
    "Densify",
    "Doped",
    "Factorized",
    "FoldBatchNorm",
    "InferenceMode",
    "InlineFunctions",
    "InsertBatchNorm",
    "LiftConstants",
    "LowRank",
    "Parallel",
    "Pass",
    "PassResult",
    "Prune",
    "RestoreViews",
    "StoreComputedParameters",
    "UnshareInitializers",
    "Wide",
    "get_pass",
    "recipe_of",
    "register_pass",
    "run_recipe",
    "transform",
]

# Name -> module, of what is imported on first use.
_HOMES = {name: module for module, _, name in (home.partition(":") for home in BUILT_IN.values())}
_HOMES |= dict.fromkeys(("recipe_of", "run_recipe", "transform"), "sift_onnx.passes.pipeline")

if not TYPE_CHECKING:  # type checkers would take any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'sift_onnx.passes' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
