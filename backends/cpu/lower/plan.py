"""Model to plan: which parts of the graph the kernels run, which onnxruntime does, and why.

Nodes become groups that are one operator, each with a step for the kernels or the reason why it has none
(``node_groups``). Groups are parted into regions and sub-graphs (``partition``). Regions that do not pay go to
onnxruntime, until none is left (``profitability``). In the others, operators are fused (``fusion``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sift_onnx.backends.base import Placement
from sift_onnx.backends.cpu.lower.costs import Estimate
from sift_onnx.backends.cpu.lower.placements import placements_of
from sift_onnx.backends.cpu.lower.profitability import MARGIN, Setting, is_sparse, region_estimates, why_not_profitable
from sift_onnx.backends.cpu.lower.refusals import (
    carried_out,
    circular,
    indivisible,
    islands,
    own_reason,
    stranded,
    unsized,
)
from sift_onnx.backends.cpu.lower.region import Region, fused_steps, region_of
from sift_onnx.backends.cpu.lower.weights import read_weights
from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.node_groups import NodeGroup, find_node_groups, given_up, needed
from sift_onnx.backends.lowering.partition import Part, partition
from sift_onnx.backends.lowering.specs import Matmul
from sift_onnx.backends.lowering.subgraph import Subgraph
from sift_onnx.backends.lowering.weights import ValueType

__all__ = ["Plan", "lower"]


@dataclass(frozen=True)
class Plan:
    """What is run, in order.

    Attributes:
        parts: regions and sub-graphs; none where onnxruntime has all of the model.
        placements: every node of the model, in its order.
        estimates: of what the kernels have, for each of the sizes that were weighed.
    """

    parts: tuple[Region | Subgraph, ...]
    placements: tuple[Placement, ...]
    estimates: tuple[Estimate, ...] = ()


def lower(
    graph: GraphView, threads: int, setting: Setting, is_timed: bool = True, values: ValueType = "float32"
) -> Plan:
    """The plan for ``graph``.

    Args:
        graph: the model.
        threads: that read its weights.
        setting: what regions are weighed with.
        is_timed: whether the plan is timed against onnxruntime where estimates leave that open. Then regions stay that
            may pay, if there are none that should.
        values: how products hold weights that the model stores in float32.
    """
    found, dims = find_node_groups(graph, partial(read_weights, threads=threads))
    found = [_with_values(group, values) for group in found]
    groups, parts = _settle(graph, found, dims, setting)
    if is_timed and not any(part.on_kernels for part in parts):
        groups, parts = _settle(graph, found, dims, replace(setting, slack=max(setting.slack, MARGIN)))
    placements = placements_of(graph, groups)
    if not any(part.on_kernels for part in parts):
        return Plan((), placements)
    reason = indivisible(graph, parts)
    if reason:
        everything = [replace(group, step=None, reason=reason if group.step else group.reason) for group in groups]
        return Plan((), placements_of(graph, everything))
    made: list[Region | Subgraph] = []
    estimates = [Estimate(0.0, 0.0)] * len(setting.sizes)
    for part in parts:
        if part.on_kernels:
            made.append(region_of(graph, part))
            known = _known(graph, part, dims)
            own = region_estimates(fused_steps(graph, part), known, part.inputs, part.outputs, setting)
            estimates = [a + b for a, b in zip(estimates, own, strict=True)]
        else:
            made.append(Subgraph.of(graph, _nodes(part), part.inputs, part.outputs))
    return Plan(tuple(made), placements, tuple(estimates))


def _with_values(group: NodeGroup, values: ValueType) -> NodeGroup:
    """``group`` with its product's weights in fewer bits, if the model has them in float32."""
    step = group.step
    if step is None or not isinstance(step.spec, Matmul) or step.spec.weights.values != "float32":
        return group
    weights = replace(step.spec.weights, values=values)
    return replace(group, step=replace(step, spec=replace(step.spec, weights=weights)))


def _settle(
    graph: GraphView, groups: list[NodeGroup], dims: Mapping[str, Dims], setting: Setting
) -> tuple[list[NodeGroup], list[Part]]:
    """Part, and give up regions that do not pay; each round leaves fewer, so it ends."""
    while True:
        kept = needed(groups, graph)
        parts = partition(kept, graph.outputs)
        refused = (
            circular(kept, parts)
            or _unprofitable(graph, _aside(parts), dims, setting)
            or unsized(graph, parts)
            or carried_out(parts)
            or stranded(graph, parts)
            or islands(graph, parts)
            or _unprofitable(graph, parts, dims, setting)
        )
        if not refused:
            return kept, parts
        groups = [given_up(graph, group, refused[group.nodes]) if group.nodes in refused else group for group in groups]


def _aside(parts: Sequence[Part]) -> list[Part]:
    """Regions without a sparse layer whose results no kernel reads: what waits for them parts other regions."""
    read = {name for part in parts if part.on_kernels for name in part.inputs}
    return [
        part
        for part in parts
        if part.on_kernels and not read.intersection(part.outputs) and not any(map(_is_sparse, part.groups))
    ]


def _unprofitable(
    graph: GraphView, parts: Sequence[Part], dims: Mapping[str, Dims], setting: Setting
) -> dict[tuple[int, ...], str]:
    """Groups of regions that do not pay, by their nodes, and why."""
    # Those without a sparse layer first, such as what makes a mask: without them, others may be larger.
    idle = [part for part in parts if part.on_kernels and not any(map(_is_sparse, part.groups))]
    refused: dict[tuple[int, ...], str] = {}
    for part in idle or parts:
        if not part.on_kernels:
            continue
        known = _known(graph, part, dims)
        is_alone = len(parts) == 1
        reason = why_not_profitable(fused_steps(graph, part), known, part.inputs, part.outputs, setting, is_alone)
        if reason:
            refused.update((group.nodes, own_reason(group) or reason) for group in part.groups)
    return refused


def _known(graph: GraphView, part: Part, dims: Mapping[str, Dims]) -> dict[str, Dims]:
    """Sizes of what enters a region, constants among it."""
    read = (name for group in part.groups if group.step is not None for name in group.step.inputs)
    return {name: dims.get(name) or graph.dims(name) or () for name in (*part.inputs, *read)}


def _is_sparse(group: NodeGroup) -> bool:
    return group.step is not None and is_sparse(group.step)


def _nodes(part: Part) -> list[int]:
    return sorted(index for group in part.groups for index in group.nodes)
