"""Arithmetic of an activation and one number, where only a run knows how many channels there are."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.rules.step import NodeView, Step, View
from sift_onnx.backends.lowering.specs import Elementwise

__all__ = ["number_beside", "with_number"]


def number_beside(node: NodeView, activation: int) -> float | None:
    """The number that an activation whose channels only a run counts is added to, or multiplied or divided by."""
    values, dims = node.known_values(1 - activation), node.dims(activation)
    if values is None or values.size != 1 or values.dtype != np.float32 or values.ndim > len(dims):
        return None
    number = values.reshape(-1)[0]
    with np.errstate(divide="ignore", over="ignore"):
        number = np.float32(1) / number if node.op == "Div" else number
    is_reversed = node.op in ("Div", "Sub") and activation == 1
    return float(number) if np.isfinite(number) and not is_reversed else None


def with_number(
    node: NodeView, activation: int, view: View, number: float, kind: Literal["add", "subtract", "multiply", "power"]
) -> Step:
    """Arithmetic with a number, which is a constant of the step's own."""
    name = node.between("number")
    node.graph.constants[name] = gs.Constant(name, np.full([1], number, np.float32))
    spec = Elementwise(kind, repeats=True)
    return replace(node.step(spec, view), inputs=(node.input(activation), name))
