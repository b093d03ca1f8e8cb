"""Sizes of inputs that a plan takes for one although the model names them differently.

torch's newer exporter gives the batch of each input a name of its own where nothing in the model's Python code compares
them. What is known of them here is all that there is: a plan is made of names, and a run checks sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy.typing as npt

from sift_onnx.backends.lowering.assumed_sizes import AssumedSizes, holds, in_words
from sift_onnx.backends.lowering.dims import Dim, names_in, subtracted
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.meeting_sizes import names_that_meet, numbers_that_meet

__all__ = [
    "NOTHING_EQUAL",
    "EqualSizes",
    "OpenAxis",
    "open_axes",
    "taken_for_equal",
    "taken_for_numbers",
    "with_conditions",
]


@dataclass(frozen=True)
class OpenAxis:
    """The first axis of a name: all axes of one name have one size anyway.

    Attributes:
        name: of its size.
        input: that has it.
        axis: its position.
    """

    name: str
    input: str
    axis: int


@dataclass(frozen=True)
class EqualSizes:
    """Groups of axes; those of a group have one size in all runs that the plan is for.

    Attributes:
        groups: of two axes or more, each of another name. The first name stands for all.
        conditions: expressions of names that are not negative in these runs; see :class:`AssumedSizes`.
        axes: of the names in the conditions.
    """

    groups: tuple[tuple[OpenAxis, ...], ...] = ()
    conditions: tuple[Dim, ...] = ()
    axes: tuple[OpenAxis, ...] = ()

    @cached_property
    def names(self) -> dict[str, str]:
        """The name in the plan, by the name in the model where that is another one."""
        return {axis.name: group[0].name for group in self.groups for axis in group[1:]}

    @property
    def text(self) -> str:
        """What is taken for equal, in words; empty if nothing is."""
        groups = [", ".join(repr(axis.name) for axis in group) for group in self.groups]
        found = f"planned for equal sizes {' and '.join(groups)}" if groups else ""
        usual = in_words(self.conditions)
        return "; ".join(filter(None, (found, f"planned for sizes {usual}" if usual else "")))

    def difference(self, shapes: Mapping[str, tuple[int, ...]]) -> str:
        """Two axes of a group whose sizes differ, or a size that the conditions exclude, in words; empty without such.

        Args:
            shapes: of the inputs, by name; those that are missing have any size.
        """
        for group in self.groups:
            known = [axis for axis in group if axis.input in shapes]
            sizes = [shapes[axis.input][axis.axis] for axis in known]
            for axis, size in zip(known, sizes, strict=True):
                if size != sizes[0]:
                    first = known[0]
                    return (
                        f"{axis.name!r} is {size} in input {axis.input!r}, and {first.name!r} is {sizes[0]} in input "
                        f"{first.input!r}"
                    )
        return self._excluded(shapes) if self.conditions else ""

    def _excluded(self, shapes: Mapping[str, tuple[int, ...]]) -> str:
        known = [axis for axis in self.axes if axis.input in shapes]
        sizes = {axis.name: shapes[axis.input][axis.axis] for axis in known}
        if all(holds(condition, sizes) for condition in self.conditions):
            return ""
        listed = ", ".join(f"{axis.name!r} is {sizes[axis.name]} in input {axis.input!r}" for axis in known)
        return f"{listed}, and not {in_words(self.conditions)}"

    def difference_of(self, feeds: Mapping[str, npt.NDArray[Any]]) -> str:
        """As :meth:`difference`, of arrays."""
        return self.difference({name: array.shape for name, array in feeds.items()}) if self != NOTHING_EQUAL else ""


NOTHING_EQUAL = EqualSizes()


def taken_for_equal(
    graph: GraphView,
    with_names: Callable[[Mapping[str, str | int]], GraphView],
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[EqualSizes, GraphView]:
    """Sizes of inputs that meet in the graph, and the graph where each group of them has one name.

    Names that one input has both are not taken for one: they are a batch and a length, say.

    Args:
        graph: as the model names sizes.
        with_names: makes the graph with other names, by those of the model.
        shapes: of inputs that are known; their sizes are not taken for equal where they differ.
    """
    groups: dict[str, tuple[OpenAxis, ...]] = {name: (axis,) for name, axis in open_axes(graph).items()}
    for name in graph.outputs:
        graph.dims(name)  # what is assumed of sizes is known from then on
    inputs = {name: {spec for spec in graph.inputs if name in (graph.dims(spec) or ())} for name in groups}
    found, view = NOTHING_EQUAL, graph
    while len(groups) > 1:
        count = len(groups)
        for pair in names_that_meet(view):
            # Names of the last round stand for their groups; names that were joined in this one do not.
            first, second = (_group_of(groups, name) for name in pair)
            if first is None or second is None or first == second or inputs[first] & inputs[second]:
                continue
            kept, other = sorted((first, second), key=list(groups).index)
            together = (*groups[kept], *groups[other])
            if EqualSizes((together,)).difference(shapes):
                continue
            groups[kept] = together
            inputs[kept] |= inputs.pop(other)
            del groups[other]
        if len(groups) == count:
            break
        found = EqualSizes(tuple(group for group in groups.values() if len(group) > 1))
        view = with_names(found.names)
    return found, view


def taken_for_numbers(
    equal: EqualSizes, view: GraphView, with_names: Callable[[Mapping[str, str | int]], GraphView]
) -> tuple[EqualSizes, GraphView]:
    """Names that meet a number taken for it, as where a loop over an open axis was unrolled; the graph with these.

    Args:
        equal: what is taken for equal before, without conditions.
        view: the graph with the names of ``equal``. It is returned itself if no name meets a number.
        with_names: as of :func:`taken_for_equal`.
    """
    axes, known = open_axes(view), dict[str, int]()
    while True:
        more = {name: number for name, number in numbers_that_meet(view).items() if name in axes and name not in known}
        if not more:
            break
        known |= more
        first = {name: known.get(group, group) for name, group in equal.names.items()}
        view = with_names({**known, **first})
    conditions = tuple(own for name, size in known.items() for own in (subtracted(name, size), subtracted(size, name)))
    return replace(equal, conditions=conditions, axes=tuple(axes[name] for name in known)), view


def with_conditions(equal: EqualSizes, graph: GraphView, assumed: AssumedSizes) -> EqualSizes | None:
    """``equal``, with what was assumed of the sizes of ``graph``; None if no run fulfils it, or can be asked for it."""
    conditions = (*equal.conditions, *assumed.conditions)
    axes = open_axes(graph)
    names = set().union(*map(names_in, conditions))
    if not names <= set(axes) or any(isinstance(condition, int) for condition in conditions):
        return None
    return replace(equal, conditions=conditions, axes=tuple(axis for name, axis in axes.items() if name in names))


def _group_of(groups: Mapping[str, tuple[OpenAxis, ...]], name: str) -> str | None:
    """The first name of the group that has this one; None for what is no name of an input."""
    return next((first for first, group in groups.items() if any(axis.name == name for axis in group)), None)


def open_axes(graph: GraphView) -> dict[str, OpenAxis]:
    """The first axis of each name that an input has, by the name, in the order of inputs."""
    found: dict[str, OpenAxis] = {}
    for name in graph.inputs:
        for axis, size in enumerate(graph.dims(name) or ()):
            if isinstance(size, str):
                found.setdefault(size, OpenAxis(size, name, axis))
    return found
