"""Which values change the order of their axes: groups that then take fewer elements to transpose.

Nodes that run in any order tie their values to a group. A group either stays or turns as a whole. At its border are
nodes that turn values already, which a group that turns makes superfluous, and others, which it makes a Transpose for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from sift_onnx.backends.lowering.channel_order.axis_uses import AxisUses, axis_uses
from sift_onnx.backends.lowering.channel_order.orders import Order, first_order, inverse
from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.matching.norms import find_norms
from sift_onnx.backends.lowering.rules import NodeView

__all__ = ["Turns", "find_turns"]

# Sizes that only a run knows, behind the batch: what counts is how values compare.
_UNKNOWN_SIZE = 16
_OF_IMAGES = (
    "AveragePool", "BatchNormalization", "Conv", "ConvInteger", "ConvTranspose", "DepthToSpace", "GlobalAveragePool",
    "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN", "MaxPool", "QLinearConv", "SpaceToDepth",
)  # fmt: skip


@dataclass
class Turns:
    """What changes.

    Attributes:
        values: that get their channels behind the first axis, and how many axes each has.
        kept: those of them that are read in their old order too.
        uses: of nodes that run in the new order, by index.
        entries: nodes that turn the other way round what becomes one of ``values``.
        exits: nodes that turn one of them as it is turned now.
    """

    values: dict[str, int] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    uses: dict[int, AxisUses] = field(default_factory=dict)
    entries: set[int] = field(default_factory=set)
    exits: set[int] = field(default_factory=set)


def find_turns(graph: GraphView) -> Turns:
    """The groups of ``graph`` that turn; those that gain most are chosen first, since they may share a Transpose."""
    found = Turns()
    border = _Border(graph)
    if not (border.entries or border.exits):
        return found
    opaque = {index for norm in find_norms(graph) for index in norm.nodes} | set(graph.derived.values())
    uses = {
        index: own
        for index in range(len(graph.nodes))
        if index not in opaque and (own := axis_uses(NodeView(graph, index, {}, {}))) is not None
    }
    groups = _groups(uses, border.values)
    weighed = sorted(groups, key=lambda values: _Weighed(graph, border, uses, values, found).gain, reverse=True)
    for values in weighed:
        group = _Weighed(graph, border, uses, values, found)
        if not group.is_of_images or not (group.gain > 0 or (group.gain == 0 and group.is_fused)):
            continue
        found.values.update((name, len(graph.dims(name) or ())) for name in values)
        found.kept |= group.kept
        found.uses.update((index, uses[index]) for index in group.nodes)
        found.entries |= group.entries
        found.exits |= group.exits
    return found


class _Border:
    """Nodes that turn images: entries to channels last, exits to channels first, by index.

    Those whose values have one position along all axes that change are Reshapes in some exports.
    """

    def __init__(self, graph: GraphView) -> None:
        self.entries: set[int] = set()
        self.exits: set[int] = set()
        self.values: set[str] = set()
        constant = set(graph.derived.values())
        for index, node in enumerate(graph.nodes):
            if index in constant or not is_standard_op(node, "Transpose", "Reshape"):
                continue
            before, after = graph.dims(node.input[0]), graph.dims(node.output[0])
            if before is None or after is None or len(before) != len(after) or len(before) < 3:
                continue
            order = tuple(next((a.ints for a in node.attribute if a.name == "perm"), range(len(before))[::-1]))
            is_turned = node.op_type == "Transpose"
            first = first_order(len(before))
            if order == first if is_turned else _is_reshaped(before, after, first):
                self.exits.add(index)
                self.values.add(node.input[0])
            if order == inverse(first) if is_turned else _is_reshaped(before, after, inverse(first)):
                self.entries.add(index)
                self.values.add(node.output[0])


def _is_reshaped(before: Dims, after: Dims, order: Order) -> bool:
    """Whether a Reshape turns axes: to sizes in that order, where all that changes places has one position."""
    moved = [axis for axis in order if before[axis] != 1]
    return moved == sorted(moved) and after == tuple(before[axis] for axis in order) and before != after


def _groups(uses: dict[int, AxisUses], others: Iterable[str]) -> list[list[str]]:
    """Values that are tied to each other."""
    parent = {name: name for name in others}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for own in uses.values():
        for name in own.values:
            parent.setdefault(name, name)
            parent[root(name)] = root(own.values[0])
    groups: dict[str, list[str]] = defaultdict(list)
    for name in parent:
        groups[root(name)].append(name)
    return list(groups.values())


class _Weighed:
    """What it would take and save to turn a group of values, after ``found``."""

    def __init__(
        self, graph: GraphView, border: _Border, uses: dict[int, AxisUses], values: list[str], found: Turns
    ) -> None:
        self.kept: set[str] = set()
        self.nodes: set[int] = set()
        self.entries: set[int] = set()
        self.exits: set[int] = set()
        self.gain = 0
        self.is_of_images = False
        follows_images, is_made_else = False, False
        taken = found.entries | found.exits
        for name in values:
            dims = graph.dims(name) or ()
            size = _elements(dims)
            is_kept = name in graph.outputs
            maker = graph.producers.get(name)
            for index in graph.readers.get(name, ()):
                if index in uses and name in uses[index].values:
                    self.nodes.add(index)
                elif index in border.exits and index not in taken:
                    self.exits.add(index)
                    self.gain += size
                    self.is_of_images |= len(dims) > 3 or _is_read_by_images(graph, graph.nodes[index].output[0])
                else:
                    is_kept = True
            if maker is not None and maker in uses and name in uses[maker].values:
                self.nodes.add(maker)
                self.gain -= size * is_kept
            elif maker in border.entries and maker not in taken:
                self.entries.add(maker)
                self.gain += size * (not is_kept)
                source = graph.producers.get(graph.nodes[maker].input[0], -1)
                of_images = source >= 0 and is_standard_op(graph.nodes[source], *_OF_IMAGES)
                self.is_of_images |= len(dims) > 3 or of_images
                follows_images |= of_images
            else:
                # What it was made in stays there, for those who read it so.
                self.gain -= size
                is_made_else = True
            if is_kept:
                self.kept.add(name)
        # Where nothing is saved: what follows images alone is done where these are stored.
        self.is_fused = bool(self.nodes) and follows_images and not is_made_else
        if self.entries & self.exits:
            # Of three axes, the way there is the way back: a Transpose within a group does neither.
            self.gain = -1


def _is_read_by_images(graph: GraphView, name: str) -> bool:
    return any(is_standard_op(graph.nodes[index], *_OF_IMAGES) for index in graph.readers.get(name, ()))


def _elements(dims: Dims) -> int:
    return math.prod(size if isinstance(size, int) else _UNKNOWN_SIZE if axis else 1 for axis, size in enumerate(dims))
