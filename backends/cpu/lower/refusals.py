"""What stays in onnxruntime whether or not it would pay in kernels, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sift_onnx.backends.cpu.lower.weights import LIVE_BELOW, SPARSE_BELOW, pays
from sift_onnx.backends.lowering.dims import is_bound_by
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.node_groups import NodeGroup
from sift_onnx.backends.lowering.partition import Part
from sift_onnx.backends.lowering.specs import (
    ArgExtreme,
    BatchedMatmul,
    Conv,
    GatherElements,
    Joined,
    LinearLayer,
    LinearResize,
    Matmul,
    OpenJoined,
    OpenSliced,
    PixelCopy,
    QuantizedMatmul,
    Recurrent,
    Repeated,
    Reshaped,
    ScatterElements,
    Sliced,
    Softmax,
    TopK,
    Transposed,
)
from sift_onnx.backends.lowering.subgraph import unexchangeable

__all__ = ["carried_out", "circular", "indivisible", "own_reason", "stranded", "unsized"]

_PARTS_OF_ATTENTION = (BatchedMatmul, Softmax)
_ASKING = (LinearResize, OpenSliced, PixelCopy, Repeated, Reshaped, ScatterElements)
_SELECTIONS = (ArgExtreme, TopK, GatherElements)


def indivisible(graph: GraphView, parts: Sequence[Part]) -> str:
    """Why the model must stay in one piece; empty if it need not."""
    made = {name for part in parts for name in part.outputs}
    loose = next((name for name in graph.outputs if name not in made), None)
    if loose is not None:
        return f"the output {loose!r} is an input or a constant"
    bad = unexchangeable(graph, parts)
    return f"{bad!r} would pass between parts, but is no tensor of a type that can be exchanged" if bad else ""


def circular(kept: Sequence[NodeGroup], parts: Sequence[Part]) -> dict[tuple[int, ...], str]:
    """Attentions that wait for what is made of their own cache, so that no part has them."""
    placed = {id(group) for part in parts for group in part.groups}
    return {
        group.nodes: "what it adds to its scores is made of its own cache"
        for group in kept
        if id(group) not in placed and group.step is not None and group.step.cache is not None
    }


def unsized(graph: GraphView, parts: Sequence[Part]) -> dict[tuple[int, ...], str]:
    """Groups that reshape, or repeat, to sizes that no operand of their region has."""
    refused: dict[tuple[int, ...], str] = {}
    for part in parts:
        # A cache is no operand: a schedule does not depend on its sizes.
        steps = [group.step for group in part.groups if group.step is not None]
        read = {name for step in steps for name in (*step.inputs, step.mask)}
        operands = read.intersection(part.inputs)
        known = {size for name in operands for size in graph.dims(name) or () if not isinstance(size, int)}
        for group in part.groups:
            spec = group.step.spec if group.step is not None else None
            if not isinstance(spec, _ASKING) or all(is_bound_by(size, known) for size in spec.asked()):
                continue
            if isinstance(spec, (Reshaped, Repeated, ScatterElements)):
                refused[group.nodes] = "its target is computed during the run"
            else:
                refused[group.nodes] = "its bounds are computed during the run"
    return refused


def carried_out(parts: Sequence[Part]) -> dict[tuple[int, ...], str]:
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
            copies = isinstance(step.spec, (Transposed, Sliced, OpenSliced, Repeated, Joined, OpenJoined))
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


def stranded(graph: GraphView, parts: Sequence[Part]) -> dict[tuple[int, ...], str]:
    """Products of two computed values, and softmax, that read what onnxruntime makes, or make what it alone reads.

    Of attention that the kernels do not have as a whole, they would cut onnxruntime's part in pieces. So would finding
    places of values that onnxruntime makes; those of the kernels' own values are fewer than the values.
    """
    elsewhere = {name for part in parts if not part.on_kernels for name in part.outputs}
    readers: dict[str, set[bool]] = defaultdict(set)
    for part in parts:
        for name in (name for group in part.groups for name in group.reads):
            readers[name].add(part.on_kernels)
    refused: dict[tuple[int, ...], str] = {}
    for part in parts:
        for group in part.groups:
            step = group.step
            if step is None or not isinstance(step.spec, (*_PARTS_OF_ATTENTION, *_SELECTIONS)):
                continue
            is_left = readers[step.output] == {False} and step.output not in graph.outputs
            is_left = is_left and isinstance(step.spec, _PARTS_OF_ATTENTION)
            # Places may come from elsewhere.
            read = step.inputs[:1] if isinstance(step.spec, GatherElements) else step.inputs
            if is_left or elsewhere.intersection(read):
                refused[group.nodes] = "it is between nodes of onnxruntime"
    return refused


def islands(graph: GraphView, parts: Sequence[Part]) -> dict[tuple[int, ...], str]:
    """Groups that share only operands with the layers of their region: what they make, onnxruntime alone reads.

    A mask that onnxruntime turns into another is such a one, where layers read its operand too. Kernels would have to
    make it before onnxruntime's turn, and the layers after that turn would be a region of their own.
    """
    own = [part for part in parts if part.on_kernels]
    groups = [group for part in own for group in part.groups]
    maker = {name: group.nodes for group in groups for name in group.writes}
    neighbours: dict[tuple[int, ...], set[tuple[int, ...]]] = defaultdict(set)
    for group in groups:
        for name in group.reads:
            if name in maker:
                neighbours[group.nodes].add(maker[name])
                neighbours[maker[name]].add(group.nodes)
    kept = [
        group.nodes
        for group in groups
        if group.step is None
        or isinstance(group.step.spec, (LinearLayer, Recurrent))
        or not set(graph.outputs).isdisjoint(group.writes)
    ]
    reached = set(kept)
    while kept:
        added = neighbours[kept.pop()] - reached
        reached |= added
        kept.extend(added)
    return {
        group.nodes: "it is between nodes of onnxruntime"
        for part in own
        if any(group.nodes in reached for group in part.groups)
        for group in part.groups
        if group.nodes not in reached
    }


def own_reason(group: NodeGroup) -> str:
    """Of a layer with weights: its density."""
    spec = group.step.spec if group.step is not None else None
    if isinstance(spec, QuantizedMatmul) and spec.weights.quad_density > LIVE_BELOW:
        return (
            f"its int8 weights fill {spec.weights.quad_density:.0%} of the quads (four along the input features), the "
            f"kernels gain below {LIVE_BELOW:.0%}"
        )
    if isinstance(spec, (Conv, Matmul, Recurrent)) and not pays(spec.weights):
        active = spec.weights.active_share
        return f"its weights are dense: {active:.0%} are active, the kernels gain below {SPARSE_BELOW:.0%}"
    return ""
