"""Sparse iso-FLOP transformations of ONNX models.

Names are imported on first use, so that ``import sift_onnx`` is quick and needs no optional package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sift_onnx.analysis.cost import inspect
    from sift_onnx.analysis.rule_registry import register_axis_rule
    from sift_onnx.backends.cpu.run.pool import ThreadPool
    from sift_onnx.backends.cpu.run.session import InferenceSession
    from sift_onnx.backends.dataflow.simulation.model_simulation import simulate
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
    "errors",
    "inspect",
    "load",
    "masks",
    "passes",
    "register_axis_rule",
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
    "inspect": "sift_onnx.analysis.cost",
    "load": "sift_onnx.model",
    "masks": "sift_onnx.model",
    "register_axis_rule": "sift_onnx.analysis.rule_registry",
    "save": "sift_onnx.model",
    "simulate": "sift_onnx.backends.dataflow.simulation.model_simulation",
    "to_torch": "sift_onnx.training.importing.importer",
    "transform": "sift_onnx.passes.pipeline",
    "write_back": "sift_onnx.training.writing.model",
}


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
