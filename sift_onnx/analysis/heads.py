"""Where a width is split into heads: the reshapes that feed attention."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.operators.traits import MOVING

__all__ = ["head_splits"]

# Operators between the split and the product that move or scale what they are given.
_PASSED = MOVING | {
    *("Add", "Cast", "Div", "LayerNormalization", "Mul", "Neg", "RMSNormalization", "RotaryEmbedding"),
}


def head_splits(analysis: AxisAnalysis) -> frozenset[int]:
    """Indices of the Reshape nodes that split a growing width on its way into a product of activations."""
    index_of = {id(node): i for i, node in enumerate(analysis.order)}
    found: set[int] = set()
    for product in analysis.products:
        pending: list[gs.Tensor] = list(analysis.order[product.index].inputs)
        seen: set[int] = set()
        while pending:
            tensor = pending.pop()
            if id(tensor) in seen or len(tensor.inputs) != 1:
                continue
            seen.add(id(tensor))
            node = tensor.inputs[0]
            if node.op == "Reshape" and _splits(analysis, node):
                found.add(index_of[id(node)])
            elif node.op in _PASSED:
                pending.extend(node.inputs)
    return frozenset(found)


def _splits(analysis: AxisAnalysis, node: gs.Node) -> bool:
    """Whether a growing axis of the input comes out as more than one axis."""
    before, after = analysis.axes.get(node.inputs[0].name), analysis.axes.get(node.outputs[0].name)
    if not before or not after:
        return False
    original = analysis.system.original
    sizes = {original(axis.size) for axis in before if analysis.system.grows(axis.size)}
    kept = {original(axis.size) for axis in after}
    return bool(sizes - kept)
