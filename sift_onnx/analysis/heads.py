"""Where a width is split into heads: the reshapes that feed attention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

import onnx_graphsurgeon as gs

from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.operators.domains import canonical_domain
from sift_onnx.operators.traits import MOVING

__all__ = ["head_splits", "splits_of_compared_features"]

# Operators around a product that move, scale or normalize what they are given.
_PASSED = MOVING | {
    *("Add", "Cast", "Div", "LayerNormalization", "Mul", "Neg", "RMSNormalization", "RotaryEmbedding", "Softmax"),
}


def head_splits(analysis: AxisAnalysis) -> frozenset[int]:
    """Indices of the Reshape nodes that split a growing width on its way into a product of activations."""
    nodes = (analysis.order[product.index] for product in analysis.products)
    return frozenset(_splits_before(analysis, nodes))


def splits_of_compared_features(analysis: AxisAnalysis) -> frozenset[int]:
    """Those among them behind which a softmax runs along the features of a head.

    So it is where attention is between features and not between positions (El-Nouby et al., XCiT, 2021). Another
    feature would have a share in each softmax, while another head has a softmax of its own.
    """
    products = {product.index for product in analysis.products}
    found: set[int] = set()
    for node in analysis.order:
        if not _normalizes_features(analysis, node):
            continue
        readers = (analysis.order[index] for index in _products_behind(analysis, node, products))
        found |= _splits_before(analysis, [node, *readers], products)
    return frozenset(index for index in found if _has_heads(analysis, analysis.order[index]))


def _normalizes_features(analysis: AxisAnalysis, node: gs.Node) -> bool:
    """Whether a softmax of the node runs along an axis that grows."""
    if node.op == "Softmax":
        read, axis = node.inputs[0], int(node.attrs.get("axis", -1))
    elif node.op == "Attention" and not canonical_domain(node.domain) and len(node.inputs) > 1:
        read, axis = node.inputs[1], -2
    else:
        return False
    axes = analysis.axes.get(read.name)
    return axes is not None and analysis.system.grows(axes[axis].size)


def _products_behind(analysis: AxisAnalysis, softmax: gs.Node, products: Set[int]) -> Iterator[int]:
    """The products of activations that read what a softmax gives, moved or scaled at most."""
    index_of = {id(node): i for i, node in enumerate(analysis.order)}
    pending, seen = list(softmax.outputs), set[int]()
    while pending:
        for node in pending.pop().outputs:
            index = index_of.get(id(node), -1)
            if index in products:
                yield index
            elif node.op in _PASSED and index not in seen:
                pending.extend(node.outputs)
            seen.add(index)


def _splits_before(analysis: AxisAnalysis, nodes: Iterable[gs.Node], products: Set[int] = frozenset()) -> set[int]:
    """The splits of a growing width before ``nodes``, also those before ``products`` on the way."""
    index_of = {id(node): i for i, node in enumerate(analysis.order)}
    found: set[int] = set()
    for start in nodes:
        pending: list[gs.Tensor] = list(start.inputs)
        seen: set[int] = set()
        while pending:
            tensor = pending.pop()
            if id(tensor) in seen or len(tensor.inputs) != 1:
                continue
            seen.add(id(tensor))
            node = tensor.inputs[0]
            if node.op == "Reshape" and _splits(analysis, node):
                found.add(index_of[id(node)])
            elif node.op in _PASSED or index_of.get(id(node), -1) in products:
                pending.extend(node.inputs)
    return found


def _splits(analysis: AxisAnalysis, node: gs.Node) -> bool:
    """Whether a growing axis of the input comes out as more than one axis."""
    before, after = analysis.axes.get(node.inputs[0].name), analysis.axes.get(node.outputs[0].name)
    if not before or not after:
        return False
    original = analysis.system.original
    sizes = {original(axis.size) for axis in before if analysis.system.grows(axis.size)}
    kept = {original(axis.size) for axis in after}
    return bool(sizes - kept)


def _has_heads(analysis: AxisAnalysis, split: gs.Node) -> bool:
    """Whether the axis before the one that grows is one of several heads."""
    after = analysis.axes.get(split.outputs[0].name) or ()
    growing = [i for i, axis in enumerate(after) if analysis.system.grows(axis.size)]
    return len(growing) == 1 and growing[0] > 0 and analysis.system.original(after[growing[0] - 1].size) > 1
