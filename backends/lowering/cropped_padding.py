"""The graph without positions that a convolution makes of padding only for them to be cut off, as causal ones do.

torch pads both sides alike, so a convolution that sees no later positions makes too many, and a Slice follows.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.graph_writer import GraphWriter

__all__ = ["without_cropped_padding"]


@dataclass(frozen=True)
class _Crop:
    """A Slice of the result of a convolution, and the pads with which that makes what the Slice leaves."""

    index: int
    result: str
    pads: tuple[int, ...]


def without_cropped_padding(graph: GraphView) -> GraphView:
    """``graph``, or one that computes the same values, in which convolutions pad no more than is kept."""
    crops = {i: crop for i, node in enumerate(graph.nodes) if (crop := _crop(graph, node)) is not None}
    if not crops:
        return graph
    writer = GraphWriter(graph)
    cut = {crop.index for crop in crops.values()}
    for index, node in enumerate(graph.nodes):
        if index in cut:
            continue
        copy = writer.copied(node)
        crop = crops.get(index)
        if crop is not None:
            copy.output[0] = crop.result
            kept = [attribute for attribute in copy.attribute if attribute.name != "pads"]
            del copy.attribute[:]
            copy.attribute.extend([*kept, onnx.helper.make_attribute("pads", crop.pads)])
        writer.write(index, copy)
        if crop is not None:
            writer.place_with(crop.index, index)
    return writer.written()


def _crop(graph: GraphView, node: onnx.NodeProto) -> _Crop | None:
    """The one reader of a convolution, if it cuts off nothing but positions at the end that padding gave."""
    if not is_standard_op(node, "Conv") or node.output[0] in graph.outputs:
        return None
    readers = graph.readers.get(node.output[0], [])
    if len(readers) != 1 or not is_standard_op(graph.nodes[readers[0]], "Slice"):
        return None
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    dims, weights = graph.dims(node.input[0]), graph.dims(node.input[1])
    pads = attributes.get("pads")
    if dims is None or weights is None or not pads or attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    part = _single_range(graph, graph.nodes[readers[0]], len(dims))
    if part is None:
        return None
    axis, end = part
    spatial, count = axis - 2, len(dims) - 2
    kernel = weights[axis] if axis < len(weights) else None
    if spatial < 0 or not isinstance(kernel, int) or attributes.get("strides", [1] * count)[spatial] != 1:
        return None
    size = dims[axis]
    grown = pads[spatial] + pads[count + spatial] - attributes.get("dilations", [1] * count)[spatial] * (kernel - 1)
    if end == size:
        less = grown
    elif isinstance(end, int) and end < 0:
        less = -end
    elif isinstance(end, int) and isinstance(size, int):
        less = size + grown - end
    else:
        return None
    # At least as many positions stay as the operand has, whatever its size.
    if not 0 < less <= min(grown, pads[count + spatial]):
        return None
    left = list(pads)
    left[count + spatial] -= less
    return _Crop(readers[0], graph.nodes[readers[0]].output[0], tuple(left))


def _single_range(graph: GraphView, node: onnx.NodeProto, rank: int) -> tuple[int, object] | None:
    """The axis of a Slice from the first position on, and where it ends; None for any other one."""
    if len(node.input) < 4 or not node.input[3]:
        return None
    starts, ends, axes = (graph.vector(name) for name in node.input[1:4])
    steps = graph.vector(node.input[4]) if len(node.input) > 4 and node.input[4] else (1,)
    if starts != (0,) or steps != (1,) or ends is None or axes is None or len(ends) != 1 or len(axes) != 1:
        return None
    axis = axes[0]
    return (axis % rank, ends[0]) if isinstance(axis, int) else None
