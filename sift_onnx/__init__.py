"""Sparse iso-FLOP transformations of ONNX models.

Names are imported on first use, so that ``import sift_onnx`` is quick and needs no optional package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sift_onnx import errors, passes
    from sift_onnx.analysis.rule_registry import register_axis_rule
    from sift_onnx.api.looking import benchmark, check, evaluate, inspect, profile, simulate
    from sift_onnx.api.pages import report
    from sift_onnx.api.rewriting import densify, prune, quantize
    from sift_onnx.backends.cpu.run.pool import ThreadPool
    from sift_onnx.backends.cpu.run.session import InferenceSession
    from sift_onnx.backends.decoding.decoder import Decoder
    from sift_onnx.model import Model, load, masks, save
    from sift_onnx.passes.pipeline import transform
    from sift_onnx.training.importing.importer import to_torch
    from sift_onnx.training.writing.model import write_back

    __version__: str

__all__ = [
    "Decoder",
    "InferenceSession",
    "Model",
    "ThreadPool",
    "__version__",
    "benchmark",
    "check",
    "densify",
    "errors",
    "evaluate",
    "inspect",
    "load",
    "masks",
    "passes",
    "profile",
    "prune",
    "quantize",
    "register_axis_rule",
    "report",
    "save",
    "simulate",
    "to_torch",
    "transform",
    "write_back",
]

_HOMES = {
    "Decoder": "sift_onnx.backends.decoding.decoder",
    "InferenceSession": "sift_onnx.backends.cpu.run.session",
    "Model": "sift_onnx.model",
    "ThreadPool": "sift_onnx.backends.cpu.run.pool",
    "benchmark": "sift_onnx.api.looking",
    "check": "sift_onnx.api.looking",
    "densify": "sift_onnx.api.rewriting",
    "evaluate": "sift_onnx.api.looking",
    "inspect": "sift_onnx.api.looking",
    "load": "sift_onnx.model",
    "masks": "sift_onnx.model",
    "profile": "sift_onnx.api.looking",
    "prune": "sift_onnx.api.rewriting",
    "quantize": "sift_onnx.api.rewriting",
    "register_axis_rule": "sift_onnx.analysis.rule_registry",
    "report": "sift_onnx.api.pages",
    "save": "sift_onnx.model",
    "simulate": "sift_onnx.api.looking",
    "to_torch": "sift_onnx.training.importing.importer",
    "transform": "sift_onnx.passes.pipeline",
    "write_back": "sift_onnx.training.writing.model",
}


if not TYPE_CHECKING:  # a type checker that sees it takes any name for one that exists

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            try:
                return getattr(import_module(_HOMES[name]), name)
            except ModuleNotFoundError as error:
                if (error.name or "").partition(".")[0] != "torch":
                    raise
                from sift_onnx.errors import MissingExtraError

                raise MissingExtraError(f"{name} needs torch: pip install 'sift-onnx[train]'") from error
        if name in ("errors", "passes"):
            return import_module(f"sift_onnx.{name}")
        if name == "__version__":
            return import_module("importlib.metadata").version("sift-onnx")
        raise AttributeError(f"module 'sift_onnx' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
