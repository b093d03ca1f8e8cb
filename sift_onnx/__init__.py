"""Sparse iso-FLOP transformations of ONNX models.

Names are imported on first use, so that ``import sift_onnx`` is quick and needs no optional package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sift_onnx.axis_rules import register_axis_rule
    from sift_onnx.cost import inspect
    from sift_onnx.model import Model, load, masks, save
    from sift_onnx.passes.pipeline import transform

__all__ = ["Model", "errors", "inspect", "load", "masks", "passes", "register_axis_rule", "save", "transform"]

_HOMES = {
    "Model": "sift_onnx.model",
    "inspect": "sift_onnx.cost",
    "load": "sift_onnx.model",
    "masks": "sift_onnx.model",
    "register_axis_rule": "sift_onnx.axis_rules",
    "save": "sift_onnx.model",
    "transform": "sift_onnx.passes.pipeline",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in ("errors", "passes"):
        return import_module(f"sift_onnx.{name}")
    raise AttributeError(f"module 'sift_onnx' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
