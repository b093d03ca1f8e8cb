"""The graph with concatenations in the place of assignments to slices.

What torch assigns to a slice of a tensor, it exports as ScatterND: its places are those of a grid, which is computed of
ranges along the axes. The result is the tensor's parts before and behind the slice, with what is assigned between them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import onnx

from sift_onnx.backends.lowering.cut_sizes import OPEN_END
from sift_onnx.backends.lowering.dims import Dim
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.graph_writer import GraphWriter
from sift_onnx.backends.lowering.matching.place_lines import Line, lines_of, maker_of, one_number, single_place

__all__ = ["with_joined_slices"]

# The first version with axes of Unsqueeze as an operand.
_OPSET = 13


@dataclass(frozen=True)
class _Assignment:
    """One node, and the places that it writes.

    Attributes:
        value: what is assigned.
        places: along each of the first axes.
        added: axes that what is assigned does not have, and the tensor has.
    """

    value: str
    places: tuple[tuple[int, int], ...]
    added: tuple[int, ...]


def with_joined_slices(graph: GraphView) -> GraphView:
    """``graph``, or one that computes the same values, in which slices are joined with what is assigned."""
    if graph.opset < _OPSET:
        return graph
    found = {i: made for i, node in enumerate(graph.nodes) if (made := _assignment(graph, node)) is not None}
    if not found:
        return graph
    dead = _read_for_nothing(graph, found)
    placed: dict[int, list[int]] = defaultdict(list)
    for index, reader in dead.items():
        placed[reader].append(index)
    writer = GraphWriter(graph)
    for index, node in enumerate(graph.nodes):
        if index in dead:
            continue
        if index in found:
            _write(writer, index, node, found[index])
        else:
            writer.write(index, writer.copied(node))
        for other in placed[index]:
            writer.place_with(other, index)
    return writer.written()


def _assignment(graph: GraphView, node: onnx.NodeProto) -> _Assignment | None:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if attributes.get("reduction", b"none") != b"none":
        return None
    if is_standard_op(node, "ScatterND"):
        return _of_grid(graph, node)
    if is_standard_op(node, "ScatterElements"):
        return _of_one_place(graph, node, int(attributes.get("axis", 0)))
    return None


def _of_grid(graph: GraphView, node: onnx.NodeProto) -> _Assignment | None:
    """ScatterND of a grid that ranges span."""
    data, grid, updates = (graph.dims(name) for name in node.input)
    lines = lines_of(graph, node.input[1])
    if data is None or grid is None or updates is None or lines is None or len(lines) > len(data):
        return None
    if not all(map(_is_along, lines, data)):
        return None
    spanned = [line.axis for line in lines if line.axis]
    if len(grid) - 1 == len(lines):
        # Single places have an axis of one position each.
        added: tuple[int, ...] = ()
        if any(line.axis not in (0, i - len(lines)) for i, line in enumerate(lines)):
            return None
        if any(not line.axis and updates[i] != 1 for i, line in enumerate(lines)):
            return None
    else:
        added = tuple(axis for axis, line in enumerate(lines) if not line.axis)
        if spanned != list(range(1 - len(grid), 0)):
            return None
    places = tuple(_bounds(line, size) for line, size in zip(lines, data, strict=False))
    return _Assignment(_assigned(graph, node.input[2]), places, added)


def _of_one_place(graph: GraphView, node: onnx.NodeProto, axis: int) -> _Assignment | None:
    """ScatterElements at one place of an axis."""
    data, updates = graph.dims(node.input[0]), graph.dims(node.input[2])
    if data is None or updates is None:
        return None
    axis, place = axis % len(data), one_number(graph, node.input[1])
    if place is None or updates != (*data[:axis], 1, *data[axis + 1 :]):
        return None
    line = single_place(place)
    if not _is_along(line, data[axis]):
        return None
    return _Assignment(node.input[2], (*[(0, OPEN_END)] * axis, _bounds(line, data[axis])), ())


def _assigned(graph: GraphView, name: str) -> str:
    """The value before nodes that would repeat it, if it were smaller, to the sizes of the grid."""
    node, dims = maker_of(graph, name), graph.dims(name)
    while node is not None and node.op_type in ("Expand", "Reshape") and graph.dims(node.input[0]) == dims:
        name = node.input[0]
        node = maker_of(graph, name)
    return name


def _is_along(line: Line, size: Dim) -> bool:
    """Whether the places are those of an axis of this size, and parts before and behind them are slices."""
    start, stop = line.start, line.stop
    if line.size is None:
        return start in (0, -1) or (isinstance(size, int) and -size <= start < size)
    # What lies before a slice ends where that starts, whatever the size is, if both are counted from one end.
    is_ordered = start == 0 or stop >= OPEN_END or 0 < start <= stop
    return line.size == size and is_ordered


def _bounds(line: Line, size: Dim) -> tuple[int, int]:
    """Where the places begin, and behind which they end: 0 and ``OPEN_END`` if nothing lies there."""
    if not isinstance(size, int):
        return line.start, line.stop
    start, stop, _ = slice(line.start, line.stop).indices(size)
    return start, OPEN_END if stop == size else stop


def _write(writer: GraphWriter, index: int, node: onnx.NodeProto, found: _Assignment) -> None:
    """Slices along one axis after the other, from the innermost on, and their concatenations."""
    result = node.output[0]
    value, data = writer.current(found.value), writer.current(node.input[0])

    def constant(number: int, what: str) -> str:
        return writer.constant(np.array([number], np.int64), f"{result}: {what}")

    def part(of: str, axis: int, start: int, stop: int, what: str) -> str:
        made = writer.unique(f"{result}: {what}")
        bounds = [constant(number, f"bound of what is {what}") for number in (start, stop, axis)]
        writer.add("Slice", [of, *bounds], made)
        return made

    cut = [(axis, *bounds) for axis, bounds in enumerate(found.places) if bounds[0] or bounds[1] < OPEN_END]
    outer = [data]
    for axis, start, stop in cut[:-1]:
        outer.append(part(outer[-1], axis, start, stop, "around"))
    if found.added:
        made = writer.unique(f"{result}: assigned")
        axes = writer.constant(np.array(found.added, np.int64), f"{result}: axes")
        writer.add("Unsqueeze", [value, axes], made)
        value = made
    for (axis, start, stop), own in zip(reversed(cut), reversed(outer), strict=False):
        joined = [part(own, axis, 0, start, "before")] if start else []
        joined.append(value)
        if stop < OPEN_END:
            joined.append(part(own, axis, stop, np.iinfo(np.int64).max, "behind"))
        value = writer.unique(f"{result}: joined")
        writer.add("Concat", joined, value, axis=axis)
    writer.place_next((index,))
    writer.add("Identity", [value], result, name=node.name)


def _read_for_nothing(graph: GraphView, found: dict[int, _Assignment]) -> dict[int, int]:
    """Each node that only makes places of assignments, with the last node that it was made for."""
    needed = {*graph.outputs, *(made.value for made in found.values())}
    needed.update(graph.nodes[index].input[0] for index in found)
    dead: dict[int, int] = {}
    for index in range(len(graph.nodes) - 1, -1, -1):
        outputs = graph.nodes[index].output
        readers = [reader for name in outputs for reader in graph.readers.get(name, [])]
        if readers and needed.isdisjoint(outputs) and all(reader in found or reader in dead for reader in readers):
            dead[index] = max(dead.get(reader, reader) for reader in readers)
    return dead
