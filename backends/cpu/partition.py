"""Units into parts that run one after the other: regions for the kernels, sub-graphs for onnxruntime."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sift_onnx.backends.cpu.rules import View
from sift_onnx.backends.cpu.units import Unit

__all__ = ["Part", "partition"]


@dataclass(frozen=True)
class Part:
    """Units that run together.

    Attributes:
        units: in topological order.
        on_kernels: whether kernels run them; then all of their values have the same number of images or rows.
        inputs: values from outside.
        outputs: values that are read outside.
    """

    units: tuple[Unit, ...]
    on_kernels: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def partition(units: Sequence[Unit], graph_outputs: Sequence[str]) -> list[Part]:
    """Parts in an order in which they can run.

    All units of one kind that can run, do, before the other kind has its turn: that makes few changes of kind, and
    never a cycle.
    """
    turns = _turns(units)
    groups: list[tuple[bool, list[Unit]]] = []
    for on_kernels, members in turns:
        if on_kernels:
            groups += [(True, component) for component in _components(members)]
        else:
            groups.append((False, members))
    readers: dict[str, set[int]] = defaultdict(set)
    for number, (_, members) in enumerate(groups):
        for unit in members:
            for name in unit.reads:
                readers[name].add(number)
    parts = []
    for number, (on_kernels, members) in enumerate(groups):
        made = [name for unit in members for name in unit.writes]
        read = dict.fromkeys(name for unit in members for name in unit.reads)
        outputs = [name for name in made if name in graph_outputs or readers[name] - {number}]
        inputs = [name for name in read if name not in set(made)]
        parts.append(Part(tuple(members), on_kernels, tuple(inputs), tuple(outputs)))
    return parts


def _turns(units: Sequence[Unit]) -> list[tuple[bool, list[Unit]]]:
    """Runs of one kind; within each, units in their original order."""
    made = {name for unit in units for name in unit.writes}
    waiting = [{name for name in unit.reads if name in made} for unit in units]
    readers: dict[str, list[int]] = defaultdict(list)
    for i, names in enumerate(waiting):
        for name in names:
            readers[name].append(i)
    ready: dict[bool, list[int]] = {True: [], False: []}
    for i, names in enumerate(waiting):
        if not names:
            ready[units[i].step is not None].append(i)
    turns: list[tuple[bool, list[Unit]]] = []

    def made_for(reader: int, name: str) -> None:
        waiting[reader].discard(name)
        if not waiting[reader]:
            ready[units[reader].step is not None].append(reader)

    # Starting with onnxruntime: what it makes may let more of the kernels' units run together.
    kind = not ready[False]
    while ready[True] or ready[False]:
        members: list[int] = []
        masks: list[tuple[int, str]] = []
        while ready[kind]:
            i = ready[kind].pop()
            members.append(i)
            for name in units[i].writes:
                for reader in readers[name]:
                    if kind and _mask_of(units[reader]) == name:
                        # Read as an array, and so from outside its reader's region.
                        masks.append((reader, name))
                    else:
                        made_for(reader, name)
        for reader, name in masks:
            made_for(reader, name)
        if members:
            turns.append((kind, [units[i] for i in sorted(members)]))
        kind = not kind
    return turns


def _mask_of(unit: Unit) -> str:
    return unit.step.mask if unit.step is not None else ""


def _components(units: Sequence[Unit]) -> list[list[Unit]]:
    """Units that share values, and so the number of images or rows; in topological order each."""
    parent = list(range(len(units)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    owner: dict[tuple[str, View | None], int] = {}
    made = {name for unit in units for name in unit.writes}
    for i, unit in enumerate(units):
        assert unit.step is not None
        # A value from outside may be read as images by one unit and as rows by another.
        keys = [(name, None if name in made else unit.step.view) for name in unit.step.inputs]
        for key in [*keys, *((name, None) for name in unit.writes)]:
            parent[root(i)] = root(owner.setdefault(key, i))
    components: dict[int, list[Unit]] = defaultdict(list)
    for i, unit in enumerate(units):
        components[root(i)].append(unit)
    return list(components.values())
