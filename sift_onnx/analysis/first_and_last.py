"""First and last layers of a network, found by position.

Both stay dense (paper, appendix B.2): pruning them costs accuracy out of proportion.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import onnx_graphsurgeon as gs

from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.analysis.subgraphs import captured
from sift_onnx.analysis.unanalyzed_layers import left_out_layers
from sift_onnx.operators.traits import SHAPE_READING

__all__ = ["first_and_last"]


def first_and_last(analysis: AxisAnalysis) -> dict[str, str]:
    """The weight layers that no other weight layer precedes, and those that none follows; unanalyzed layers count too.

    Weights that were not trained do not count: after its last convolutions, a detector integrates over fixed bins.

    Returns:
        Initializer name -> ``"first layer"`` or ``"last layer"``.
    """
    layers_at: dict[int, list[str]] = defaultdict(list)
    layers = {name: layer for name, layer in analysis.layers.items() if name not in analysis.fixed}
    for layer in layers.values():
        for use in layer.uses:
            layers_at[use.index].append(layer.name)
    for left_out in left_out_layers(analysis):
        layers_at[left_out.index].append(left_out.constant.name)
    order = [(node, layers_at[index]) for index, node in enumerate(analysis.order)]
    sides = [_read(node) for node, _ in order], [{t.name for t in node.outputs} for node, _ in order]
    preceded = _reached(order, *sides)
    followed = _reached(order[::-1], sides[1][::-1], sides[0][::-1])
    roles = {name: "last layer" for name in layers if name not in followed}
    roles.update({name: "first layer" for name in layers if name not in preceded})
    return roles


def _read(node: gs.Node) -> set[str]:
    return {t.name for t in node.inputs} | captured(node)


def _reached(
    order: Sequence[tuple[gs.Node, Sequence[str]]], entering: Sequence[set[str]], leaving: Sequence[set[str]]
) -> set[str]:
    """The layers that another one comes before, in ``order``.

    Args:
        order: the nodes and the layers that each uses.
        entering: names of the tensors that each node is reached by.
        leaving: names of the tensors by which it reaches others.
    """
    # Two layers per tensor are enough to tell whether there is one that is not the layer in question.
    passed: dict[str, frozenset[str]] = {}
    reached: set[str] = set()
    for (node, layers), before, after in zip(order, entering, leaving, strict=True):
        seen = _two(passed.get(name, frozenset()) for name in before if name)
        reached.update(name for name in layers if seen - {name})
        if node.op not in SHAPE_READING:
            mine = _two([seen, frozenset(layers)])
            passed.update({name: _two([passed.get(name, frozenset()), mine]) for name in after if name})
    return reached


def _two(groups: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset(sorted(frozenset().union(*groups))[:2])
