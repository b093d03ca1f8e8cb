"""Model to plan: which parts of the graph the kernels run, which onnxruntime does, and why.

Nodes become groups that are one operator, each with a step for the kernels or the reason why it has none
(``node_groups``). Groups are parted into regions and sub-graphs (``partition``). Regions that do not pay go to
onnxruntime, until none is left (``profitability``). In the others, operators are fused (``fusion``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.base import Placement
from sift_onnx.backends.cpu.lower.algorithms import pools_at_once
from sift_onnx.backends.cpu.lower.costs import Estimate
from sift_onnx.backends.cpu.lower.profitability import (
    MARGIN,
    Setting,
    is_sparse,
    region_estimates,
    why_not_profitable,
)
from sift_onnx.backends.cpu.lower.stages import count_of_large
from sift_onnx.backends.cpu.lower.weights import LIVE_BELOW, SPARSE_BELOW, pays, read_weights
from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.fusion import fuse
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.node_groups import NodeGroup, find_node_groups, given_up, needed
from sift_onnx.backends.lowering.partition import Part, partition
from sift_onnx.backends.lowering.rules import Step, View
from sift_onnx.backends.lowering.specs import (
    Conv,
    Depthwise,
    Joined,
    Matmul,
    QuantizedMatmul,
    Repeated,
    Reshaped,
    Sliced,
    Spec,
    Transposed,
)
from sift_onnx.backends.lowering.specs.decoding import CacheNames, TableRows
from sift_onnx.backends.lowering.subgraph import Subgraph, unexchangeable
from sift_onnx.backends.lowering.weights import ValueType
from sift_onnx.operators.labels import node_name

__all__ = ["KERNELS", "ONNXRUNTIME", "Plan", "Region", "lower"]

KERNELS = "kernels"
ONNXRUNTIME = "onnxruntime"


@dataclass(frozen=True)
class PreparedRows:
    """Rows of a table that are looked up before a region runs.

    Attributes:
        output: its name of them.
        inputs: positions, or lengths and the total.
        spec: what is looked up.
    """

    output: str
    inputs: tuple[str, ...]
    spec: TableRows


@dataclass(frozen=True)
class Region:
    """Steps that kernels run without leaving their layout.

    Attributes:
        steps: after fusion, in order.
        inputs: values from outside, and how they are read; a value may come in several ways. Masks are the last ones.
        outputs: values that are read outside.
        names: of the node that each step is named after.
        ops: operator of that node.
        single: whether it runs image by image, whatever the batch; see ``stages``.
        constants: values of those inputs that are constants.
        symbols: sizes of the other inputs, as far as they are known before a run.
        signed: inputs and outputs of bytes that are int8 outside.
        prepared: inputs that are looked up in tables.
        caches: of the steps that have one, in order.
    """

    steps: tuple[Step, ...]
    inputs: tuple[tuple[str, View], ...]
    outputs: tuple[str, ...]
    names: tuple[str, ...]
    ops: tuple[str, ...]
    single: bool = False
    constants: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict, repr=False)
    symbols: Mapping[str, Dims] = field(default_factory=dict, repr=False)
    signed: frozenset[str] = frozenset()
    prepared: tuple[PreparedRows, ...] = ()
    caches: tuple[CacheNames, ...] = ()

    @cached_property
    def read(self) -> tuple[str, ...]:
        """Names of all that it needs from outside."""
        looked_up = {one.output for one in self.prepared}
        names = [name for name, _ in self.inputs if name not in self.constants and name not in looked_up]
        names += [name for one in self.prepared for name in one.inputs]
        names += [name for cache in self.caches for name in cache.read]
        return tuple(dict.fromkeys(names))

    @cached_property
    def made(self) -> tuple[str, ...]:
        """Names of all that it makes for others: its outputs, then its caches."""
        return (*self.outputs, *(name for cache in self.caches for name in cache.written))

    @cached_property
    def dtypes(self) -> Mapping[str, DType]:
        """Element types of what its steps read and make, by name; those of bytes are UINT8 within it."""
        read = {name: step.dtype for step in self.steps for name in step.inputs}
        return read | {step.output: step.result_dtype for step in self.steps}

    def array_dtype(self, name: str) -> DType:
        """The element type of what enters or leaves it."""
        return DType.INT8 if name in self.signed else self.dtypes.get(name, DType.FLOAT32)


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
    placements = _placements(graph, groups)
    if not any(part.on_kernels for part in parts):
        return Plan((), placements)
    reason = _indivisible(graph, parts)
    if reason:
        everything = [replace(group, step=None, reason=reason if group.step else group.reason) for group in groups]
        return Plan((), _placements(graph, everything))
    made: list[Region | Subgraph] = []
    estimates = [Estimate(0.0, 0.0)] * len(setting.sizes)
    for part in parts:
        if part.on_kernels:
            made += _regions(graph, part)
            own = region_estimates(_fused(part), _known(graph, part, dims), part.inputs, part.outputs, setting)
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


def _indivisible(graph: GraphView, parts: Sequence[Part]) -> str:
    """Why the model must stay in one piece; empty if it need not."""
    made = {name for part in parts for name in part.outputs}
    loose = next((name for name in graph.outputs if name not in made), None)
    if loose is not None:
        return f"the output {loose!r} is an input or a constant"
    bad = unexchangeable(graph, parts)
    return f"{bad!r} would pass between parts, but is no tensor of a type that can be exchanged" if bad else ""


def _settle(
    graph: GraphView, groups: list[NodeGroup], dims: Mapping[str, Dims], setting: Setting
) -> tuple[list[NodeGroup], list[Part]]:
    """Part, and give up regions that do not pay; each round leaves fewer, so it ends."""
    while True:
        kept = needed(groups, graph)
        parts = partition(kept, graph.outputs)
        refused = (
            _circular(kept, parts)
            or _unsized(graph, parts)
            or _carried_out(parts)
            or _unprofitable(graph, parts, dims, setting)
        )
        if not refused:
            return kept, parts
        groups = [given_up(graph, group, refused[group.nodes]) if group.nodes in refused else group for group in groups]


def _circular(kept: Sequence[NodeGroup], parts: Sequence[Part]) -> dict[tuple[int, ...], str]:
    """Attentions that wait for what is made of their own cache, so that no part has them."""
    placed = {id(group) for part in parts for group in part.groups}
    return {
        group.nodes: "what it adds to its scores is made of its own cache"
        for group in kept
        if id(group) not in placed and group.step is not None and group.step.cache is not None
    }


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
        reason = why_not_profitable(_fused(part), known, part.inputs, part.outputs, setting, is_alone)
        if reason:
            refused.update((group.nodes, _own_reason(group) or reason) for group in part.groups)
    return refused


def _unsized(graph: GraphView, parts: Sequence[Part]) -> dict[tuple[int, ...], str]:
    """Groups that reshape to sizes that no input of their region has."""
    refused: dict[tuple[int, ...], str] = {}
    for part in parts:
        known = {size for name in part.inputs for size in graph.dims(name) or () if isinstance(size, str)}
        for group in part.groups:
            spec = group.step.spec if group.step is not None else None
            if isinstance(spec, Reshaped) and not spec.names() <= known:
                refused[group.nodes] = "its target is computed during the run"
    return refused


def _carried_out(parts: Sequence[Part]) -> dict[tuple[int, ...], str]:
    """Groups that copy values for onnxruntime alone, which can do that itself."""
    readers: dict[str, set[bool]] = defaultdict(set)
    moved: set[str] = set()
    for part in parts:
        for group in part.groups:
            for name in group.reads:
                readers[name].add(part.on_kernels)
            step = group.step
            if step is None:
                continue
            copies = isinstance(step.spec, (Transposed, Sliced, Repeated, Joined))
            if copies or (isinstance(step.spec, Reshaped) and step.inputs[0] in moved):
                moved.add(step.output)
    # A node of several results, such as Split, stays if kernels read one of them.
    made: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for part in parts:
        for group in part.groups:
            if group.step is not None:
                made[group.nodes].append(group.step.output)
    return {
        nodes: "it moves values for nodes of onnxruntime"
        for nodes, names in made.items()
        if all(name in moved and readers[name] == {False} for name in names)
    }


def _fused(part: Part) -> list[Step]:
    return fuse([group.step for group in part.groups if group.step is not None], part.outputs, pools_at_once)


def _known(graph: GraphView, part: Part, dims: Mapping[str, Dims]) -> dict[str, Dims]:
    """Sizes of what enters a region, constants among it."""
    read = (name for group in part.groups if group.step is not None for name in group.step.inputs)
    return {name: dims.get(name) or graph.dims(name) or () for name in (*part.inputs, *read)}


def _is_sparse(group: NodeGroup) -> bool:
    return group.step is not None and is_sparse(group.step)


def _own_reason(group: NodeGroup) -> str:
    """Of a layer with weights: its density."""
    spec = group.step.spec if group.step is not None else None
    if isinstance(spec, QuantizedMatmul) and spec.weights.quad_density > LIVE_BELOW:
        return (
            f"its int8 weights fill {spec.weights.quad_density:.0%} of the quads (four along the input features), the "
            f"kernels gain below {LIVE_BELOW:.0%}"
        )
    if isinstance(spec, (Conv, Matmul)) and not pays(spec.weights):
        return (
            f"its weights are dense: {spec.weights.density:.0%} are active, the kernels gain below {SPARSE_BELOW:.0%}"
        )
    return ""


def _nodes(part: Part) -> list[int]:
    return sorted(index for group in part.groups for index in group.nodes)


def _regions(graph: GraphView, part: Part) -> list[Region]:
    """One region, or one that runs image by image and the one after it."""
    steps = _fused(part)
    if any(step.cache is not None for step in steps):
        return [_region(graph, steps, part.outputs)]
    count = count_of_large(steps, {name: graph.dims(name) or () for step in steps for name in step.inputs})
    early, late = steps[:count], steps[count:]
    if not early or not late:
        return [_region(graph, steps, part.outputs, single=not late)]
    read = {name for step in late for name in step.inputs}
    passed = tuple(step.output for step in early if step.output in read or step.output in part.outputs)
    outputs = tuple(name for name in part.outputs if name not in passed)
    return [_region(graph, early, passed, single=True), _region(graph, late, outputs)]


def _region(graph: GraphView, steps: Sequence[Step], outputs: tuple[str, ...], single: bool = False) -> Region:
    prepared = tuple(
        PreparedRows(step.output, step.inputs, step.spec) for step in steps if isinstance(step.spec, TableRows)
    )
    steps = [step for step in steps if not isinstance(step.spec, TableRows)]
    caches = tuple(step.cache for step in steps if step.cache is not None)
    outputs = tuple(name for name in outputs if not any(name in cache.written for cache in caches))
    made = {step.output for step in steps}
    inputs = dict.fromkeys((name, step.view) for step in steps for name in step.inputs if name not in made)
    masks = dict.fromkeys(step.mask for step in steps if step.mask)
    read = (*masks, *(name for name, _ in inputs))
    constants = {name: np.array(graph.values_of(name)) for name in read if name in graph.constants}
    inputs.update(dict.fromkeys((name, "array") for name in masks))
    nodes = [graph.nodes[step.nodes[0]] for step in steps]
    return Region(
        tuple(steps),
        tuple(inputs),
        outputs,
        tuple(node_name(node) for node in nodes),
        tuple(node.op_type for node in nodes),
        single,
        constants,
        {name: graph.dims(name) or () for name, _ in inputs if name not in constants},
        frozenset(
            name for name in (*(name for name, _ in inputs), *outputs) if graph.elem_type(name) == DType.INT8.onnx_type
        ),
        prepared,
        caches,
    )


def _placements(graph: GraphView, groups: Sequence[NodeGroup]) -> tuple[Placement, ...]:
    group_of = {index: group for group in groups for index in group.nodes}
    return tuple(_placement(node, group_of.get(index)) for index, node in enumerate(graph.nodes))


def _placement(node: onnx.NodeProto, group: NodeGroup | None) -> Placement:
    if group is None:
        place, reason = "folded", "its result is a constant, or is not needed"
    elif group.step is None:
        place, reason = ONNXRUNTIME, group.reason
    else:
        place, reason = KERNELS, _kernel_reason(group.step.spec)
    return Placement(node_name(node), node.op_type, place, reason)


def _kernel_reason(spec: Spec) -> str:
    match spec:
        case QuantizedMatmul() if spec.weights.quad_density <= LIVE_BELOW:
            pruned, skipped = 1 - spec.weights.density, 1 - spec.weights.quad_density
            return (
                f"int8, {pruned:.0%} of its weights are pruned, {skipped:.0%} of their quads along the input features"
            )
        case QuantizedMatmul():
            return "dense int8, between sparse layers: its operands stay in the kernels' layout"
        case Conv() | Matmul() if pays(spec.weights):
            held = "" if spec.weights.values == "float32" else f", values are held as {spec.weights.values}"
            return f"{1 - spec.weights.density:.0%} of its weights are pruned{held}"
        case Conv() | Depthwise() | Matmul():
            return "dense, between sparse layers: its operands stay in the kernels' layout"
        case Reshaped():
            return "the same values under other sizes"
        case Transposed() | Sliced() | Repeated():
            return "a view: values are copied where a layer needs them in another order"
    return "between sparse layers: its operands stay in the kernels' layout"
