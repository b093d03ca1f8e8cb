"""Gather at places that a range counts, as slices.

Exporters write windows of an axis of open size (``unfold``) as Gather at ``offsets + arange(n)``, one of which is a
column and the other one a row. For each offset, that is a slice. Places are left as they are unless all of them are
known to lie within the axis: Gather refuses others, and a slice leaves them out.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from sift_onnx.backends.lowering.cut_sizes import OPEN_END
from sift_onnx.backends.lowering.dims import added, is_at_least, subtracted
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.node_rewriter import FoundNodeRewriter

__all__ = ["with_sliced_ranges"]

# The first version in which axes of Unsqueeze are an input.
_OPSET = 13
# Each offset is a slice.
_MOST_OFFSETS = 64


@dataclass(frozen=True)
class _Places:
    """``offsets + arange(start, limit, step)``.

    Attributes:
        offsets: that are added.
        start: of the range.
        limit: name of its end, a number.
        step: of the range.
        axis: of the places along which offsets follow each other; None if the places are the range itself.
    """

    offsets: tuple[int, ...]
    start: int
    limit: str
    step: int
    axis: int | None = None


def with_sliced_ranges(graph: GraphView) -> GraphView:
    """``graph``, or one that computes the same values, in which such nodes are slices."""
    if graph.opset < _OPSET or not any(is_standard_op(node, "Range") for node in graph.nodes):
        return graph
    return _Rewriter.rewritten(graph, _places_of)


def _places_of(graph: GraphView, node: onnx.NodeProto) -> _Places | None:
    """The places of a Gather that are all known to be there."""
    if not is_standard_op(node, "Gather") or graph.elem_type(node.input[0]) != onnx.TensorProto.FLOAT:
        return None
    dims = graph.dims(node.input[0])
    if dims is None or node.input[0] in graph.constants:
        return None
    places = _range(graph, node.input[1]) or _windows(graph, node.input[1])
    limit = graph.vector(places.limit) if places is not None else None
    if places is None or limit is None or places.start + min(places.offsets) < 0:
        return None
    size, end = dims[_axis_of(node)], added((limit[0], max(places.offsets)))
    return places if is_at_least(size, end) else None


def _axis_of(node: onnx.NodeProto) -> int:
    """Along which a Gather takes values."""
    return next((int(a.i) for a in node.attribute if a.name == "axis"), 0)


def _range(graph: GraphView, name: str) -> _Places | None:
    node = _maker(graph, name)
    if node is None or not is_standard_op(node, "Range") or graph.elem_type(name) != onnx.TensorProto.INT64:
        return None
    start, step = (graph.vector(node.input[place]) for place in (0, 2))
    if start is None or step is None or not isinstance(start[0], int) or not isinstance(step[0], int) or step[0] < 1:
        return None
    return _Places((0,), start[0], node.input[1], step[0])


def _windows(graph: GraphView, name: str) -> _Places | None:
    """Places of a matrix: the sum of a row and a column, of which one is a range."""
    node = _maker(graph, name)
    if node is None or not is_standard_op(node, "Add"):
        return None
    for constant, other in (node.input, node.input[::-1]):
        values, counted = graph.values_of(constant), _maker(graph, other)
        if values is None or counted is None or not is_standard_op(counted, "Unsqueeze"):
            continue
        places, added_axis = _range(graph, counted.input[0]), graph.vector(counted.input[1])
        if places is None or added_axis is None or len(added_axis) != 1 or not 0 < values.size <= _MOST_OFFSETS:
            continue
        axis = 0 if added_axis[0] in (0, -2) else 1
        if values.shape != ((values.size, 1) if axis == 0 else (1, values.size)[2 - values.ndim :]):
            continue
        offsets = tuple(int(value) for value in values.reshape(-1))
        return _Places(offsets, places.start, places.limit, places.step, axis)
    return None


def _maker(graph: GraphView, name: str) -> onnx.NodeProto | None:
    index = graph.producers.get(name)
    return graph.nodes[index] if index is not None else None


class _Rewriter(FoundNodeRewriter[_Places]):
    """Writes one Gather."""

    def write(self, places: _Places) -> None:
        """Slices, one for each offset, side by side."""
        rank = len(self.graph.dims(self._input(0)) or ())
        axis = _axis_of(self._node) % rank
        limit = self._made("Unsqueeze", [places.limit, self._constant([0], "axis of a number")], "limit")
        self._place_next()
        if places.axis is None:
            self._add("Slice", self._slice(places, axis, limit, 0), self._output(0))
            return
        new = axis + places.axis
        windows = []
        for offset in places.offsets:
            taken = self._made("Slice", self._slice(places, axis, limit, offset), "taken")
            windows.append(self._made("Unsqueeze", [taken, self._constant([new], "new axis")], "window"))
        self._add("Concat", windows, self._output(0), axis=new)

    def _slice(self, places: _Places, axis: int, limit: str, offset: int) -> list[str]:
        dims, limits = self.graph.dims(self._input(0)), self.graph.vector(places.limit)
        assert dims is not None and limits is not None  # both were asked
        from_end = subtracted(added((limits[0], offset)), dims[axis])
        if isinstance(from_end, int):
            # However long the axis is.
            end = self._constant([from_end or OPEN_END], "end")
        else:
            end = self._made("Add", [limit, self._constant([offset], "offset")], "end") if offset else limit
        start, axes, step = (
            self._constant([value], what)
            for value, what in ((places.start + offset, "start"), (axis, "axis"), (places.step, "step"))
        )
        return [self._input(0), start, end, axes, step]
