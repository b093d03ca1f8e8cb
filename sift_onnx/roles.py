"""First and last layers of a network, found by position.

Both stay dense (paper, appendix B.2): pruning them costs accuracy out of proportion.
"""

from __future__ import annotations

from sift_onnx.axis_rules import AxisAnalysis

__all__ = ["first_and_last"]


def first_and_last(analysis: AxisAnalysis) -> dict[str, str]:
    """The weight layers that no other weight layer precedes, and those that none follows.

    Returns:
        Initializer name -> ``"first layer"`` or ``"last layer"``.
    """
    layer_of = {use.index: layer.name for layer in analysis.layers.values() for use in layer.uses}
    roles = {name: "last layer" for name in _without_weights_behind(analysis, layer_of)}
    roles.update({name: "first layer" for name in _without_weights_before(analysis, layer_of)})
    return roles


def _without_weights_before(analysis: AxisAnalysis, layer_of: dict[int, str]) -> set[str]:
    fed: set[str] = set()
    found: set[str] = set()
    preceded: set[str] = set()
    for index, node in enumerate(analysis.order):
        behind_a_layer = any(t.name in fed for t in node.inputs)
        if index in layer_of:
            (preceded if behind_a_layer else found).add(layer_of[index])
        if behind_a_layer or index in layer_of:
            fed.update(t.name for t in node.outputs)
    return found - preceded


def _without_weights_behind(analysis: AxisAnalysis, layer_of: dict[int, str]) -> set[str]:
    feeding: set[str] = set()
    found: set[str] = set()
    followed: set[str] = set()
    for index in range(len(analysis.order) - 1, -1, -1):
        node = analysis.order[index]
        before_a_layer = any(t.name in feeding for t in node.outputs)
        if index in layer_of:
            (followed if before_a_layer else found).add(layer_of[index])
        if before_a_layer or index in layer_of:
            feeding.update(t.name for t in node.inputs)
    return found - followed
