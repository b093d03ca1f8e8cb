"""Rewrite passes: each takes a model and gives a model, one file per pass."""

from sift_onnx.passes.base import Pass, PassResult, get_pass, register_pass
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
    "UnshareInitializers",
    "Wide",
    "get_pass",
    "recipe_of",
    "register_pass",
    "run_recipe",
    "transform",
]
