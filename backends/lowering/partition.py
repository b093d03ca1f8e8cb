"""Partition of the graph into parts that run in sequence: regions for the kernels, sub-graphs for onnxruntime."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sift_onnx.backends.lowering.node_groups import NodeGroup
from sift_onnx.backends.lowering.rules import View

__all__ = ["Part", "partition"]


@dataclass(frozen=True)
class Part:
    """Groups of nodes that run together.

    Attributes:
        groups: in topological order.
        on_kernels: whether kernels run them; then all of their values have the same number of images or rows.
        inputs: values from outside.
        outputs: values that are read outside.
    """

    groups: tuple[NodeGroup, ...]
    on_kernels: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def partition(groups: Sequence[NodeGroup], graph_outputs: Sequence[str]) -> list[Part]:
    """Parts in an order in which they can run.

    All groups of one kind that can run, do, before the other kind has its turn: that makes few changes of kind, and
    never a cycle.
    """
    members_of = [
        (on_kernels, members)
        for on_kernels, turn in _turns(groups)
        for members in (_components(turn) if on_kernels else [turn])
    ]
    readers: dict[str, set[int]] = defaultdict(set)
    for number, (_, members) in enumerate(members_of):
        for group in members:
            for name in group.reads:
                readers[name].add(number)
    parts = []
    for number, (on_kernels, members) in enumerate(members_of):
        made = dict.fromkeys(name for group in members for name in group.writes)
        read = dict.fromkeys(name for group in members for name in group.reads)
        outputs = [name for name in made if name in graph_outputs or readers[name] - {number}]
        inputs = [name for name in read if name not in made]
        parts.append(Part(tuple(members), on_kernels, tuple(inputs), tuple(outputs)))
    return parts


def _turns(groups: Sequence[NodeGroup]) -> list[tuple[bool, list[NodeGroup]]]:
    """Runs of one kind; within each, groups in their original order."""
    made = {name for group in groups for name in group.writes}
    waiting = [{name for name in group.reads if name in made} for group in groups]
    readers: dict[str, list[int]] = defaultdict(list)
    for i, names in enumerate(waiting):
        for name in names:
            readers[name].append(i)
    ready: dict[bool, list[int]] = {True: [], False: []}
    for i, names in enumerate(waiting):
        if not names:
            ready[groups[i].step is not None].append(i)
    turns: list[tuple[bool, list[NodeGroup]]] = []

    def made_for(reader: int, name: str) -> None:
        waiting[reader].discard(name)
        if not waiting[reader]:
            ready[groups[reader].step is not None].append(reader)

    # Starting with onnxruntime: what it makes may let more of the kernels' groups run together.
    kind = not ready[False]
    while ready[True] or ready[False]:
        members: list[int] = []
        masks: list[tuple[int, str]] = []
        while ready[kind]:
            i = ready[kind].pop()
            members.append(i)
            for name in groups[i].writes:
                for reader in readers[name]:
                    if kind and (name in _arrays_of(groups[reader]) or _is_cache_of(groups[i], name)):
                        # Read as an array, or made as one, and so from outside its reader's region.
                        masks.append((reader, name))
                    else:
                        made_for(reader, name)
        for reader, name in masks:
            made_for(reader, name)
        if members:
            turns.append((kind, [groups[i] for i in sorted(members)]))
        kind = not kind
    return turns


def _arrays_of(group: NodeGroup) -> tuple[str, ...]:
    return group.step.arrays if group.step is not None else ()


def _is_cache_of(group: NodeGroup, name: str) -> bool:
    return group.step is not None and name != group.step.output


def _components(groups: Sequence[NodeGroup]) -> list[list[NodeGroup]]:
    """Groups of nodes that share values, and so the number of images or rows; in topological order each."""
    parent = list(range(len(groups)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    owner: dict[tuple[str, View | None], int] = {}
    made = {name for group in groups for name in group.writes}
    for i, group in enumerate(groups):
        assert group.step is not None
        # A value from outside may be read as images by one group and as rows by another.
        operands = () if group.step.view == "array" else group.step.inputs
        keys = [(name, None if name in made else group.step.view) for name in operands if name in group.reads]
        for key in [*keys, (group.step.output, None)]:
            parent[root(i)] = root(owner.setdefault(key, i))
    components: dict[int, list[NodeGroup]] = defaultdict(list)
    for i, group in enumerate(groups):
        components[root(i)].append(group)
    return list(components.values())
