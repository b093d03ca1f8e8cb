"""Turn parameters that are computed from nothing but constants into initializers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import array_of, constant_values
from sift_onnx.model import Model
from sift_onnx.operators.weight_operands import FOLDABLE
from sift_onnx.passes.base import Pass, PassResult

__all__ = ["LiftConstants"]

# What reads parameters: only there is a filled tensor worth storing.
_READERS = FOLDABLE | {"BatchNormalization", "MatMul"}


@dataclass(frozen=True)
class LiftConstants(Pass):
    """Turn filled tensors that weight layers and BatchNormalization read into initializers.

    Models that were saved without their weights, and some old exporters, make parameters with ConstantOfShape nodes.

    Requires: nothing. Ensures: the same outputs.
    """

    name: ClassVar[str] = "lift-constants"

    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report lists the new initializers."""
        names = [node.outputs[0].name for node in model.graph.nodes if _is_parameter(node)]
        if not names:
            return PassResult(model, False, {"lifted": []})
        copy = model.copy()
        for node in copy.graph.nodes:
            if node.op == "ConstantOfShape" and node.outputs[0].name in names:
                _lift(node)
        copy.graph.nodes = [node for node in copy.graph.nodes if node.op != "ConstantOfShape" or node.outputs]
        return PassResult(copy, True, {"lifted": names})


def _is_parameter(node: gs.Node) -> bool:
    if node.op != "ConstantOfShape" or constant_values(node.inputs[0]) is None:
        return False
    value = node.attrs.get("value")
    floating = value is None or np.dtype(value.dtype).kind == "f"
    return floating and any(
        reader.op in _READERS and any(t is node.outputs[0] for t in reader.inputs[1:])
        for reader in node.outputs[0].outputs
    )


def _lift(node: gs.Node) -> None:
    constant = constant_values(node.inputs[0])
    assert constant is not None
    shape = [int(n) for n in array_of(constant).reshape(-1)]
    value = node.attrs.get("value")
    fill = np.float32(0) if value is None else array_of(value).reshape(-1)[0]
    output = node.outputs[0]
    node.outputs.clear()
    node.inputs.clear()
    output.to_constant(np.full(shape, fill, dtype=fill.dtype) if math.prod(shape) else np.empty(shape, fill.dtype))
