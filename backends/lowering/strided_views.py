"""Values as views of what they are made from: the same numbers in another order, some left out, times a number.

Each axis of a view is a product of factors of the axes of its source, the slowest first. Transpose exchanges axes,
Reshape regroups their factors, and Split, Slice and Gather take one position or a range of one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx

from sift_onnx.backends.lowering.dims import Dim, Dims, divided, product
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.sizes import reshaped
from sift_onnx.operators.domains import is_standard

__all__ = [
    "Axis",
    "Factor",
    "NoMatch",
    "StridedView",
    "axis_size",
    "regrouped",
    "times_number",
    "transposed",
    "view_of",
    "whole",
]

# Nodes that a value is followed through: exporters need ten at most.
_MOST_NODES = 24


class NoMatch(Exception):  # noqa: N818 - an answer, not an error
    """The graph is something else than what is looked for."""


@dataclass(frozen=True)
class Factor:
    """A factor of an axis of the source: ``size`` positions, ``stride`` apart on that axis."""

    axis: int
    size: Dim
    stride: int


Axis = tuple[Factor, ...]


@dataclass(frozen=True)
class StridedView:
    """A value as a view of another one.

    Attributes:
        source: name of the other one.
        dims: its sizes.
        axes: of the view, slowest first.
        offset: where the view begins on the last axis of the source.
        scale: what its numbers are multiplied with.
        nodes: indices of those between the source and the value.
    """

    source: str
    dims: Dims
    axes: tuple[Axis, ...]
    offset: int = 0
    scale: float = 1.0
    nodes: frozenset[int] = frozenset()


def times_number(graph: GraphView, index: int) -> tuple[str, float]:
    """Of a node that makes a value times a number: the value's name and the number; no name if it is no such node."""
    node = graph.nodes[index]
    if node.op_type == "Div":
        value = graph.number(node.input[1])
        return (node.input[0], 1 / value) if value else ("", 1.0)
    if node.op_type == "Mul":
        for i in range(2):
            value = graph.number(node.input[i])
            if value is not None and math.isfinite(value):
                return node.input[1 - i], value
    return "", 1.0


def view_of(graph: GraphView, name: str, most: int = _MOST_NODES) -> StridedView:
    """``name`` as a view of what it is made from, ``most`` nodes before it at the furthest.

    Raises:
        NoMatch: not even its rank is known.
    """
    index = graph.producers.get(name)
    if index is not None and most and is_standard(graph.nodes[index].domain) and name not in graph.constants:
        view = _through(graph, index, name, most - 1)
        if view is not None:
            return replace(view, nodes=view.nodes | {index})
    dims = graph.dims(name)
    if not dims:
        raise NoMatch
    return StridedView(name, dims, whole(dims))


def whole(dims: Dims) -> tuple[Axis, ...]:
    """The axes of a source of ``dims`` as a view of itself."""
    return tuple(() if size == 1 else (Factor(i, size, 1),) for i, size in enumerate(dims))


def axis_size(axis: Axis) -> Dim:
    """Positions of an axis."""
    return product(factor.size for factor in axis)


def transposed(node: onnx.NodeProto, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The axes after a Transpose."""
    order = next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
    return tuple(axes[axis] for axis in order) if order else axes[::-1]


def _through(graph: GraphView, index: int, name: str, most: int) -> StridedView | None:
    """The view that a node makes of its operand's; None if it makes none."""
    node = graph.nodes[index]
    if node.op_type in ("Mul", "Div"):
        operand, factor = times_number(graph, index)
        # Of a matrix that a layer has made, the number is better folded into the layer.
        if not operand or len(graph.dims(operand) or ()) <= 3:
            return None
        view = view_of(graph, operand, most)
        return replace(view, scale=view.scale * factor)
    if node.op_type not in ("Transpose", "Reshape", "Squeeze", "Split", "Slice", "Gather"):
        return None
    view = view_of(graph, node.input[0], most)
    match node.op_type:
        case "Transpose":
            return replace(view, axes=transposed(node, view.axes))
        case "Reshape":
            axes = regrouped(graph, index, view.axes)
            return replace(view, axes=axes) if axes is not None else None
        case "Squeeze":
            axes = tuple(axis for axis in view.axes if axis)
            return replace(view, axes=axes) if len(axes) == len(graph.dims(name) or ()) else None
    return _part(graph, node, name, view)


def regrouped(
    graph: GraphView, index: int, before: tuple[Axis, ...], known: Mapping[Dim, Dim] | None = None
) -> tuple[Axis, ...] | None:
    """The axes after a Reshape; None if they are not products of factors of those before it.

    Args:
        graph: the model.
        index: of the Reshape.
        before: the axes of its operand.
        known: what sizes are that the graph has other names for.
    """
    node = graph.nodes[index]
    listed = graph.vector(node.input[1])
    copies_zeros = not any(a.name == "allowzero" and a.i for a in node.attribute)
    if listed is not None and known is not None:
        listed = tuple(known.get(size, size) for size in listed)
    target = reshaped(listed, tuple(axis_size(axis) for axis in before), copies_zeros) if listed is not None else None
    if target is None:
        return None
    left = [factor for axis in before for factor in axis]
    axes: list[Axis] = []
    for size in target:
        taken: list[Factor] = []
        need = size
        while need != 1:
            if not left:
                return None
            factor = left.pop(0)
            more = divided(need, factor.size)
            if more is not None:
                taken.append(factor)
                need = more
                continue
            rest = divided(factor.size, need)
            if not isinstance(rest, int):
                return None
            taken.append(Factor(factor.axis, need, factor.stride * rest))
            left.insert(0, Factor(factor.axis, rest, factor.stride))
            need = 1
        axes.append(tuple(taken))
    return None if left else tuple(axes)


def _part(graph: GraphView, node: onnx.NodeProto, name: str, view: StridedView) -> StridedView | None:
    """What a Split, Slice or Gather takes out of one axis of ``view``."""
    match node.op_type:
        case "Split":
            found = _split_range(graph, node, name)
        case "Slice":
            found = _slice_range(graph, node)
        case _:
            found = _gathered_range(graph, node)
    if found is None:
        return None
    axis, first, size = found
    axis %= len(view.axes)
    if len(view.axes[axis]) != 1:
        return None
    factor = view.axes[axis][0]
    if factor.axis != len(view.dims) - 1 or not isinstance(factor.size, int):
        return None
    if size is None:
        outputs = len(node.output)
        if factor.size % outputs:
            return None
        size = factor.size // outputs
        first *= size
    if first < 0 or size < 1 or first + size > factor.size:
        return None
    left: tuple[Axis, ...] = () if node.op_type == "Gather" else (() if size == 1 else (replace(factor, size=size),),)
    axes = (*view.axes[:axis], *left, *view.axes[axis + 1 :])
    return replace(view, axes=axes, offset=view.offset + first * factor.stride)


def _split_range(graph: GraphView, node: onnx.NodeProto, name: str) -> tuple[int, int, int | None] | None:
    """Axis, first position and size; no size, and the number of the part, if the parts are equal."""
    number = list(node.output).index(name)
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    sizes = next((list(a.ints) for a in node.attribute if a.name == "split"), [])
    if len(node.input) > 1 and node.input[1]:
        listed = graph.values_of(node.input[1])
        if listed is None:
            return None
        sizes = [int(n) for n in listed.reshape(-1)]
    return (axis, sum(sizes[:number]), sizes[number]) if sizes else (axis, number, None)


def _slice_range(graph: GraphView, node: onnx.NodeProto) -> tuple[int, int, int] | None:
    listed = [graph.values_of(name) for name in node.input[1:]]
    if len(listed) < 3 or any(values is None or values.size != 1 for values in listed):
        return None
    start, end, axis, *step = (int(values.reshape(-1)[0]) for values in listed if values is not None)
    return (axis, start, end - start) if step in ([], [1]) and 0 <= start < end else None


def _gathered_range(graph: GraphView, node: onnx.NodeProto) -> tuple[int, int, int] | None:
    """Of one position, whose axis is dropped."""
    place = graph.values_of(node.input[1])
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    return (axis, int(place), 1) if place is not None and place.ndim == 0 else None
