"""Tables of places along the axes of a tensor that ranges span, as exporters compute them for ScatterND."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from sift_onnx.backends.lowering.cut_sizes import OPEN_END
from sift_onnx.backends.lowering.dims import Dim
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op

__all__ = ["Line", "lines_of", "maker_of", "one_number", "single_place"]


@dataclass(frozen=True)
class Line:
    """The places along one axis of a tensor that an assignment writes: ``range(size)[start:stop]``.

    Attributes:
        size: of the axis that the places are of; None for a single place.
        start: as of a Slice.
        stop: likewise; at least ``OPEN_END`` is the end.
        axis: of the grid along which the places follow each other, from its end: -1 is the last one; 0 if there is
            none, since it is a single place.
    """

    size: Dim | None
    start: int
    stop: int
    axis: int


def lines_of(graph: GraphView, name: str) -> list[Line] | None:
    """The columns of a table of places, whose last axis has a place along each of the first axes of a tensor."""
    node = maker_of(graph, name)
    rank = len(graph.dims(name) or ())
    columns = [name]
    if node is not None and node.op_type == "Concat":
        axis = next(a.i for a in node.attribute if a.name == "axis")
        if axis not in (-1, rank - 1):
            return None
        columns = list(node.input)
    lines = []
    for column in columns:
        maker = maker_of(graph, column)
        dims = graph.dims(column)
        if maker is None or maker.op_type != "Unsqueeze" or dims is None or dims[-1] != 1:
            return None
        axes = graph.vector(maker.input[1])
        if axes not in ((-1,), (len(dims) - 1,)):
            return None
        line = _line(graph, maker.input[0])
        if line is None:
            return None
        lines.append(line)
    return lines


def _line(graph: GraphView, name: str) -> Line | None:
    """Places that follow each other along one axis of a tensor, and are the same along others."""
    place = one_number(graph, name)
    if place is not None:
        return single_place(place)
    node = maker_of(graph, name)
    if node is None:
        return None
    match node.op_type:
        case "Expand":
            return _line(graph, node.input[0])
        case "Range":
            first, size, step = (graph.vector(part) for part in node.input)
            is_all = first == (0,) and step == (1,) and size is not None
            return Line(size[0], 0, OPEN_END, -1) if is_all and size else None
        case "Slice":
            return _part(graph, node)
        case "Reshape" | "Unsqueeze":
            return _turned(graph, node)
    return None


def _part(graph: GraphView, node: onnx.NodeProto) -> Line | None:
    """A part of a range."""
    line = _line(graph, node.input[0])
    bounds = [graph.vector(name) if name else None for name in (*node.input[1:], "", "")[:4]]
    starts, stops, axes, steps = bounds
    if line is None or (line.start, line.stop) != (0, OPEN_END) or line.size is None:
        return None
    if len(graph.dims(node.input[0]) or ()) != 1 or axes not in (None, (0,), (-1,)) or steps not in (None, (1,)):
        return None
    if starts is None or stops is None or not isinstance(starts[0], int):
        return None
    if stops[0] == line.size:
        return Line(line.size, starts[0], OPEN_END, -1)
    return Line(line.size, starts[0], stops[0], -1) if isinstance(stops[0], int) else None


def _turned(graph: GraphView, node: onnx.NodeProto) -> Line | None:
    """A range with axes of one position before or behind it."""
    line, dims = _line(graph, node.input[0]), graph.dims(node.output[0])
    if line is None or dims is None or len(graph.dims(node.input[0]) or ()) != 1:
        return None
    target = graph.vector(node.input[1])
    if target is None:
        return None
    if node.op_type == "Unsqueeze":
        added = {int(axis) % len(dims) for axis in target if isinstance(axis, int)}
        rest = [axis for axis in range(len(dims)) if axis not in added]
    else:
        rest = [axis for axis, size in enumerate(target) if size != 1]
    return Line(line.size, line.start, line.stop, rest[0] - len(dims)) if len(rest) == 1 else None


def single_place(place: int) -> Line:
    """The line of one place, which may be counted from the end."""
    return Line(None, place, place + 1 if place != -1 else OPEN_END, 0)


def one_number(graph: GraphView, name: str) -> int | None:
    """The one integer that all elements of a tensor are, if it is made of a constant."""
    node = maker_of(graph, name)
    if node is not None and node.op_type in ("Expand", "Unsqueeze", "Reshape"):
        return one_number(graph, node.input[0])
    values = graph.values_of(name)
    return int(values.reshape(-1)[0]) if values is not None and values.size == 1 and values.dtype.kind == "i" else None


def maker_of(graph: GraphView, name: str) -> onnx.NodeProto | None:
    """The standard node that makes a value."""
    index = graph.producers.get(name)
    node = graph.nodes[index] if index is not None else None
    return node if node is not None and is_standard_op(node, node.op_type) else None
