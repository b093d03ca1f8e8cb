"""Rewrite passes: each takes a model and gives a model, one file per pass."""

from sift_onnx.passes.base import Pass, PassResult, get_pass, register_pass
from sift_onnx.passes.inline_functions import InlineFunctions
from sift_onnx.passes.lift_constants import LiftConstants
from sift_onnx.passes.pipeline import transform
from sift_onnx.passes.restore_views import RestoreViews
from sift_onnx.passes.unshare_initializers import UnshareInitializers
from sift_onnx.passes.wide import Wide

__all__ = [
    "InlineFunctions",
    "LiftConstants",
    "Pass",
    "PassResult",
    "RestoreViews",
    "UnshareInitializers",
    "Wide",
    "get_pass",
    "register_pass",
    "transform",
]
