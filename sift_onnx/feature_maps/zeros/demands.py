"""Added features that have to be zero: found from what sums over them, back to the parameters that make them.

A root mean square over ``D`` features of which only the ``d`` old ones are not zero is that over the old ones times
``sqrt(d / D)``, whatever the old ones hold; a product of queries and keys is what it was if one of the two is zero
where features are added. So such a node *demands* zeros. They cannot simply be made everywhere: a feature that is zero
between pruned weights has no gradient, and never learns anything. What has no demand on it is shifted away from zero.

First it is found out, producers first, which tensors can be zero where features are added. Then each demand goes back
along the way that was found, element by element: of a projection that holds queries, keys and values, the keys alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.feature_maps.context import FeatureMapContext
from sift_onnx.feature_maps.findings import Obstacle, ZeroDemand
from sift_onnx.feature_maps.maps import FeatureMaps
from sift_onnx.feature_maps.zeros.masks import Mask, everywhere, fitted, mask_of_input
from sift_onnx.feature_maps.zeros.sources import zero_sources
from sift_onnx.graphs.constants import constant_values
from sift_onnx.operators.labels import node_label

__all__ = ["zero_masks"]


def zero_masks(maps: FeatureMaps, contexts: Sequence[FeatureMapContext]) -> tuple[dict[str, Mask], list[Obstacle]]:
    """Which elements of which tensors have to be zero where features are added.

    Args:
        maps: whose demands are met.
        contexts: of all nodes, producers first.

    Returns:
        The masks by tensor, and the demands that cannot be met.
    """
    ways: dict[str, list[int] | None] = {}
    blocked: dict[str, str] = {}
    for ctx in contexts:
        for k, tensor in enumerate(ctx.node.outputs):
            if tensor.name and maps.grows(tensor.name):
                ways[tensor.name] = _way(ctx, k, ways)
                if ways[tensor.name] is None:
                    blocked[tensor.name] = _blocking(ctx, blocked)
    masks: dict[str, Mask] = {}
    obstacles: list[Obstacle] = []
    for demand in maps.demands:
        ctx = contexts[demand.node]
        tensors = [ctx.node.inputs[i] for i in demand.inputs]
        chosen = next((t for t in tensors if _can_be_zero(t, ways)), None)
        if chosen is None:
            reason = f"{demand.reason}, and what {blocked.get(tensors[0].name, 'it reads')} adds is not zero"
            obstacles.append(Obstacle(demand.node, reason, demand.axes))
            continue
        found = _demanded(maps, chosen.name, demand)
        masks[chosen.name] = found | masks[chosen.name] if chosen.name in masks else found
    for ctx in reversed(contexts):
        for k, tensor in enumerate(ctx.node.outputs):
            mask, way = masks.get(tensor.name), ways.get(tensor.name)
            if mask is None or not mask.any():
                continue
            for i in way or ():
                read = ctx.node.inputs[i].name
                if not maps.grows(read):
                    continue
                found = fitted(mask_of_input(ctx, i, k, mask), [axis.new for axis in maps.extents(read)])
                masks[read] = found | masks[read] if read in masks else found
    return masks, obstacles


def _demanded(maps: FeatureMaps, tensor: str, demand: ZeroDemand) -> Mask:
    extents = maps.extents(tensor)
    mask = everywhere(len(extents))
    if demand.part is not None:
        mask = np.zeros((1,) * (len(extents) - 1) + (extents[-1].new,), dtype=bool)
        mask[..., slice(*demand.part)] = True
    return mask


def _way(ctx: FeatureMapContext, output: int, ways: Mapping[str, list[int] | None]) -> list[int] | None:
    """The inputs that make an output zero, of the best alternative in which all of them can be."""
    for inputs in zero_sources(ctx, output):
        if all(_can_be_zero(ctx.node.inputs[i], ways) for i in inputs):
            return inputs
    return None


def _blocking(ctx: FeatureMapContext, blocked: Mapping[str, str]) -> str:
    """The node that first makes added features something other than zero."""
    for inputs in zero_sources(ctx):
        for i in inputs:
            if ctx.node.inputs[i].name in blocked:
                return blocked[ctx.node.inputs[i].name]
    return node_label(ctx.node)


def _can_be_zero(tensor: gs.Tensor, ways: Mapping[str, list[int] | None]) -> bool:
    """Whether what is added to a tensor can be zero: nothing is, or it is stored, or there is a way."""
    if constant_values(tensor) is not None:
        # What divides must not be zero.
        return not any(node.op == "Div" and node.inputs[1] is tensor for node in tensor.outputs)
    return ways.get(tensor.name, []) is not None
