"""Sizes of values as kernels read them, and the names that they are found under."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from sift_onnx.backends.lowering.names import made_name
from sift_onnx.backends.lowering.rules import Step, View

__all__ = ["Shape", "Sizes", "input_key", "kernel_shape", "operand_key"]

Shape = tuple[int, int, int, int]
Sizes = tuple[int, ...]


def kernel_shape(sizes: Sequence[int], view: View) -> Shape:
    """(n, c, h, w) of a tensor as kernels read it."""
    if view != "rows":
        n, c, h, w = sizes if len(sizes) == 4 else (*(1,) * (4 - len(sizes)), *sizes)
        return (n, c, h, w)
    return (math.prod(sizes[:-1]), sizes[-1] if sizes else 1, 1, 1)


def input_key(name: str, view: View) -> str:
    """Under which an input's sizes are found: it may come in several views."""
    return made_name(name, f"as {view}")


def operand_key(step: Step, position: int, known: Collection[str]) -> str:
    """Under which those of a step's operand are found."""
    name = step.inputs[position]
    return name if name in known else input_key(name, step.view)
