"""Run the feature-map rules over a graph."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from sift_onnx.analysis.axis_system import Solution
from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.feature_maps.context import FeatureMapContext, FeatureMaps
from sift_onnx.feature_maps.registry import feature_map_rule_for

__all__ = ["find_feature_maps"]

# Inputs that say how large something is to be; the sizes themselves are taken from the solution.
_SIZES = {
    ("ConstantOfShape", 0),
    ("Expand", 1),
    ("Pad", 1),
    ("Reshape", 1),
    ("Resize", 3),
    ("Slice", 1),
    ("Slice", 2),
    ("Split", 1),
    ("Tile", 1),
}


def find_feature_maps(analysis: AxisAnalysis, solution: Solution, opset: int) -> FeatureMaps:
    """Find out where the features of the original lie in every tensor of the wider model.

    It is such that every old element of every tensor holds what it held in the original, if the added weights are
    pruned and the added values of all other parameters are finite (and not zero where they divide).

    Args:
        analysis: of the original.
        solution: the new sizes.
        opset: version of the standard operator set.

    Raises:
        UnsupportedError: an operator mixes old features with added ones, or has no rule; the message names the node.
    """
    maps = FeatureMaps(analysis, solution)
    for index, node in enumerate(analysis.order):
        ctx = FeatureMapContext(maps, analysis, node, index, opset)
        _refuse_growing_numbers(ctx, analysis, solution)
        # What comes out of these is known element by element, and not a feature.
        if all(t.name in analysis.elements for t in node.outputs) or node.op == "Constant":
            continue
        tensors = [ctx.input(i) for i in range(len(node.inputs))] + [ctx.output(i) for i in range(len(node.outputs))]
        if not any(axis.grows for axes in tensors for axis in axes):
            continue
        rule = feature_map_rule_for(node.op, node.domain)
        if rule is None:
            ctx.refuse("has no rule that says where the features of the original lie behind it")
        rule(ctx)
    maps.settle()
    return maps


def _refuse_growing_numbers(ctx: FeatureMapContext, analysis: AxisAnalysis, solution: Solution) -> None:
    """A size that grows may say how large a tensor is, but must not be computed with as a number."""
    node: gs.Node = ctx.node
    if all(t.name in analysis.elements for t in node.outputs):
        return
    for i, tensor in enumerate(node.inputs):
        elements = analysis.elements.get(tensor.name)
        if elements is None or (node.op, i) in _SIZES:
            continue
        if any(solution.exact(element.size) != element.value for element in elements.reshape(-1)):
            ctx.refuse("computes with the size of an axis that grows")
