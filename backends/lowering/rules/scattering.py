"""ScatterElements along an axis, and ScatterND of whole rows: what messages along the edges of a graph are added up by.

An extreme without what was at its place before, which PyTorch calls `include_self=False`, is two nodes: the first one
puts at all places what no value is beyond. That and the second one are one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import onnx

from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.graph import GraphView, behind_identities, is_standard_op
from sift_onnx.backends.lowering.rules.selection import before_repeating_places, reads_integers
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step
from sift_onnx.backends.lowering.specs import ScatterElements

__all__ = ["scatter_elements", "scatter_nd"]

# Inputs of both operators.
_DATA, _PLACES, _UPDATES = range(3)


def scatter_elements(node: NodeView) -> Step:
    """ScatterElements of as many values along the other axes as there are.

    An Expand or Tile of places along the axes behind it is not needed: whole rows have one place each.
    """
    data, places, updates = (node.dims(position) for position in (_DATA, _PLACES, _UPDATES))
    axis = int(node.attribute("axis", 0))
    if not -len(data) <= axis < len(data):
        raise NotLowered(f"its axis {axis} is none of {len(data)}")
    axis %= len(data)
    if (*data[:axis], *data[axis + 1 :]) != (*updates[:axis], *updates[axis + 1 :]):
        raise NotLowered("its operands are not known to be of one shape but for the axis")
    repeated = before_repeating_places(node, _PLACES, axis, updates)
    if not repeated and places != updates:
        raise NotLowered("its indices are not known to be as many as its updates")
    return _scattered(node, repeated or node.input(_PLACES), axis, bool(repeated))


def scatter_nd(node: NodeView) -> Step:
    """ScatterND of rows, by one place along the first axis each."""
    data, places, updates = (node.dims(position) for position in (_DATA, _PLACES, _UPDATES))
    if len(places) != 2 or places[1] != 1:
        raise NotLowered("its indices are of several axes")
    if updates != (places[0], *data[1:]):
        raise NotLowered("its updates are not known to be rows of its data, one for each index")
    return _scattered(node, node.input(_PLACES), 0, repeats=True)


def _scattered(node: NodeView, places: str, axis: int, repeats: bool) -> Step:
    reduction = str(node.attribute("reduction", "none"))
    if reduction not in ("none", "add", "mul", "max", "min"):
        raise NotLowered(f"its reduction is {reduction!r}")
    if not reads_integers(node, places):
        raise NotLowered(f"its indices {places!r} are constants, or no int64")
    view = node.operand(_UPDATES, "rows")
    start = _start(node, axis, reduction)
    fill = _filled_with(node.graph, start.data)
    if fill is None:
        node.floats_view(start.data, "rows")
    kind = cast('Literal["none", "add", "mul", "max", "min"]', reduction)
    spec = ScatterElements(axis, node.dims(_DATA)[axis], kind, repeats, fill, start.first)
    inputs = (node.input(_UPDATES), places)
    return Step(spec, inputs if fill is not None else (*inputs, start.data), node.output, view, view, (node.index,))


@dataclass(frozen=True)
class _Start:
    """What the result of a node begins as: ``data``, and ``first`` at places that values come to."""

    data: str
    first: float | None = None


def _start(node: NodeView, axis: int, reduction: str) -> _Start:
    """What a node begins with; of an extreme, before a node that prepared its places."""
    graph, whole = node.graph, _Start(node.input(_DATA))
    producer = graph.producers.get(behind_identities(graph, whole.data))
    if producer is None or reduction not in ("max", "min") or not _puts_at(node, producer, axis):
        return whole
    before = NodeView(graph, producer, node.views, node.known_dims)
    data, values = behind_identities(graph, before.input(_DATA)), before.input(_UPDATES)
    kind = before.attribute("reduction", "none")
    if kind == reduction and _is_bound(graph, values, node.input(_UPDATES), reduction):
        # It changes nothing that the values themselves do not.
        return _Start(data)
    first, fill = _filled_with(graph, values), _filled_with(graph, data)
    if first is None:
        return whole
    if kind == "none":
        return _Start(data, first)
    is_beyond = fill is not None and (first <= fill if reduction == "max" else first >= fill)
    return _Start(data, first) if is_beyond and kind != reduction and kind in ("max", "min") else whole


def _puts_at(node: NodeView, index: int, axis: int) -> bool:
    """Whether another node is a ScatterElements at the same places along ``axis``."""
    graph, other = node.graph, node.graph.nodes[index]
    if not is_standard_op(other, "ScatterElements"):
        return False
    own, others = (behind_identities(graph, name) for name in (node.input(_PLACES), other.input[_PLACES]))
    along = next((onnx.helper.get_attribute_value(a) for a in other.attribute if a.name == "axis"), 0)
    return own == others and along % len(node.dims(_DATA)) == axis


def _is_bound(graph: GraphView, name: str, values: str, reduction: str) -> bool:
    """Whether a tensor is the value that none of ``values`` is below, or above for "min", repeated."""
    index = graph.producers.get(name)
    if index is None:
        return False
    maker = graph.nodes[index]
    if is_standard_op(maker, "Expand", "Identity"):
        return _is_bound(graph, maker.input[0], values, reduction)
    if is_standard_op(maker, "Add"):
        zero, other = maker.input
        return _filled_with(graph, zero) == 0 and _is_bound(graph, other, values, reduction)
    if not is_standard_op(maker, "ReduceMin" if reduction == "max" else "ReduceMax"):
        return False
    is_of_all = len([own for own in maker.input if own]) == 1 and all(own.name != "axes" for own in maker.attribute)
    return is_of_all and behind_identities(graph, maker.input[0]) == behind_identities(graph, values)


def _filled_with(graph: GraphView, name: str) -> float | None:
    """The number that all of a tensor of floats are; None if they are not known to be one."""
    if graph.elem_type(name) != DType.FLOAT32.onnx_type:
        return None
    if graph.fold(name):
        values = graph.values_of(name)
        alike = values is not None and values.size and (values == values.flat[0]).all()
        return float(values.flat[0]) if values is not None and alike else None
    index = graph.producers.get(name)
    if index is None:
        return None
    maker = graph.nodes[index]
    if is_standard_op(maker, "ConstantOfShape"):
        return next((float(np.ravel(onnx.numpy_helper.to_array(own.t))[0]) for own in maker.attribute), 0.0)
    return _filled_with(graph, maker.input[0]) if is_standard_op(maker, "Expand") else None
