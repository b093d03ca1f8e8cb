"""Run the feature-map rules over a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from sift_onnx.analysis.axes.solution import Solution
from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.feature_maps.context import FeatureMapContext, RefusedError
from sift_onnx.feature_maps.factors import corrections
from sift_onnx.feature_maps.findings import Obstacle, Scaling
from sift_onnx.feature_maps.maps import FeatureMaps
from sift_onnx.feature_maps.ranges import range_of_output
from sift_onnx.feature_maps.registry import feature_map_rule_for
from sift_onnx.feature_maps.zeros.demands import zero_masks
from sift_onnx.feature_maps.zeros.masks import Mask

__all__ = ["FoundMaps", "find_feature_maps"]

# What a rule stumbles over where operands are not as it expects them.
_CONTRADICTIONS = (ArithmeticError, LookupError, TypeError, ValueError)
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


@dataclass(frozen=True)
class FoundMaps:
    """Where old features lie, and what is needed for them to hold what they held.

    Attributes:
        maps: where they lie.
        zeros: which added elements of which tensors have to be zero.
        scalings: inputs that are multiplied by a number.
        obstacles: what keeps old features from holding what they held; with any of them, the rest means nothing.
    """

    maps: FeatureMaps
    zeros: dict[str, Mask]
    scalings: list[Scaling]
    obstacles: list[Obstacle]


def find_feature_maps(analysis: AxisAnalysis, solution: Solution, opset: int, outputs: Sequence[str]) -> FoundMaps:
    """Find out where the features of the original lie in every tensor of the wider model.

    It is such that every old element of every tensor holds what it held in the original, if the added weights are
    pruned, the added values of all other parameters are finite (and not zero where they divide) or zero where that is
    demanded, and what is found besides is done.

    Args:
        analysis: of the original.
        solution: the new sizes.
        opset: version of the standard operator set.
        outputs: names of the graph's outputs.
    """
    maps = FeatureMaps(analysis, solution)
    contexts = [FeatureMapContext(maps, analysis, node, i, opset) for i, node in enumerate(analysis.order)]
    obstacles: list[Obstacle] = []
    for ctx in contexts:
        try:
            _apply_rule(ctx, analysis, solution)
        except RefusedError as refused:
            obstacles.append(refused.obstacle)
        except _CONTRADICTIONS as error:
            obstacles.append(ctx.obstacle(f"makes no sense to its feature-map rule ({type(error).__name__}: {error})"))
        maps.ranges[ctx.node.outputs[0].name] = range_of_output(ctx, maps, maps.ranges)
    contradiction = maps.settle()
    if contradiction is not None:
        obstacles.append(contexts[contradiction[0]].obstacle(contradiction[1]))
    if obstacles:
        return FoundMaps(maps, {}, [], obstacles)
    zeros, obstacles = zero_masks(maps, contexts)
    return FoundMaps(maps, zeros, [*maps.scalings, *corrections(maps, contexts, outputs)], obstacles)


def _apply_rule(ctx: FeatureMapContext, analysis: AxisAnalysis, solution: Solution) -> None:
    node: gs.Node = ctx.node
    # What comes out of these is known element by element, and not a feature.
    if all(t.name in analysis.elements for t in node.outputs) or node.op == "Constant":
        return
    _freeze_growing_numbers(ctx, analysis, solution)
    tensors = [ctx.input(i) for i in range(len(node.inputs))] + [ctx.output(i) for i in range(len(node.outputs))]
    if not any(axis.grows for axes in tensors for axis in axes):
        return
    rule = feature_map_rule_for(node.op, node.domain)
    if rule is None:
        ctx.refuse("has no rule that says where the features of the original lie behind it")
    rule(ctx)


def _freeze_growing_numbers(ctx: FeatureMapContext, analysis: AxisAnalysis, solution: Solution) -> None:
    """A size that grows may say how large a tensor is, but as a number that is computed with it stays what it was."""
    for i, tensor in enumerate(ctx.node.inputs):
        elements = analysis.elements.get(tensor.name)
        if elements is None or (ctx.node.op, i) in _SIZES:
            continue
        growing = [e for e in elements.reshape(-1) if solution.exact(e.size) != e.value]
        if len(growing) < elements.size and growing:
            ctx.refuse("computes with sizes of which some grow")
        if growing:
            ctx.freeze(i)
