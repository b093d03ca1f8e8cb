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
    never a cycle. What only regions of a later turn read waits for them, and becomes a part of them.
    """
    turns = _turns(groups)
    _postpone(groups, turns, graph_outputs)
    members_of = [
        (on_kernels, [groups[i] for i in members])
        for on_kernels, turn in turns
        for members in (_components(groups, turn) if on_kernels else [turn])
        if members
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


def _turns(groups: Sequence[NodeGroup]) -> list[tuple[bool, list[int]]]:
    """Indices of groups in runs of one kind; within each in their original order."""
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
    turns: list[tuple[bool, list[int]]] = []

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
            turns.append((kind, sorted(members)))
        kind = not kind
    return turns


def _arrays_of(group: NodeGroup) -> tuple[str, ...]:
    return group.step.arrays if group.step is not None else ()


def _is_cache_of(group: NodeGroup, name: str) -> bool:
    return group.step is not None and name != group.step.output


def _postpone(groups: Sequence[NodeGroup], turns: list[tuple[bool, list[int]]], graph_outputs: Sequence[str]) -> None:
    """Move components whose results only later turns of kernels read to the first of these.

    By themselves, they are regions without a layer that pays, such as what repeats a constant for each sequence.
    """
    turn_of = {i: number for number, (_, turn) in enumerate(turns) for i in turn}
    readers: dict[str, set[int]] = defaultdict(set)
    for i, group in enumerate(groups):
        for name in group.reads:
            readers[name].add(i)
    # From the last: what is read by something that moves may move with it.
    for number in range(len(turns) - 1, -1, -1):
        on_kernels, turn = turns[number]
        for members in _components(groups, turn) if on_kernels else ():
            made = {name for i in members for name in groups[i].writes}
            reading = set().union(*(readers[name] for name in made)).difference(members)
            first = min((turn_of.get(i, number) for i in reading), default=number)
            stays = (
                first == number
                or not made.isdisjoint(graph_outputs)
                or not all(turns[turn_of[i]][0] for i in reading)
                or any(not made.isdisjoint(_arrays_of(groups[i])) for i in reading)
                or any(_is_cache_of(groups[i], name) for i in members for name in groups[i].writes)
            )
            if stays:
                continue
            gone = set(members)
            turns[number] = (True, [i for i in turns[number][1] if i not in gone])
            turns[first] = (True, sorted([*turns[first][1], *members]))
            turn_of.update(dict.fromkeys(members, first))


def _components(groups: Sequence[NodeGroup], turn: Sequence[int]) -> list[list[int]]:
    """Indices of groups that share values, and so the number of images or rows; in topological order each."""
    parent = {i: i for i in turn}

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    owner: dict[tuple[str, View | None], int] = {}
    made = {name for i in turn for name in groups[i].writes}
    for i in turn:
        step = groups[i].step
        assert step is not None
        # A value from outside may be read as images by one group and as rows by another.
        operands = () if step.view == "array" else step.inputs
        keys = [(name, None if name in made else step.view) for name in operands if name in groups[i].reads]
        for key in [*keys, (step.output, None)]:
            parent[root(i)] = root(owner.setdefault(key, i))
    components: dict[int, list[int]] = defaultdict(list)
    for i in turn:
        components[root(i)].append(i)
    return list(components.values())
