"""Rewrite passes: each takes a model and gives a model, one file per pass."""

from sift_onnx.passes.base import Pass, PassResult, get_pass, register_pass
from sift_onnx.passes.densify import Densify
from sift_onnx.passes.inline_functions import InlineFunctions
from sift_onnx.passes.lift_constants import LiftConstants
from sift_onnx.passes.pipeline import transform
from sift_onnx.passes.prune import Prune
from sift_onnx.passes.restore_views import RestoreViews
from sift_onnx.passes.unshare_initializers import UnshareInitializers
from sift_onnx.passes.wide import Wide

__all__ = [
    "Densify",
    "InlineFunctions",
    "LiftConstants",
    "Pass",
    "PassResult",
    "Prune",
    "RestoreViews",
    "UnshareInitializers",
    "Wide",
    "get_pass",
    "register_pass",
    "transform",
]
