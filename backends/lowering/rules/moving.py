"""Transpose, and what operators that move values share.

What they make is a view of their operand where that is possible; values are copied when an operator reads it.
"""

from __future__ import annotations

from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step, View, dims_of
from sift_onnx.backends.lowering.specs import OpenSliced, Repeated, Sliced, Transposed, result_dims

__all__ = ["moved", "transpose", "view_of_moved", "view_of_result"]

# Operators of images and of rows, which say how their readers want a value.
_IMAGES = frozenset({
    "AveragePool", "BatchNormalization", "Conv", "ConvInteger", "ConvTranspose", "DepthToSpace", "GlobalAveragePool",
    "GroupNormalization", "InstanceNormalization", "MaxPool", "QLinearConv", "Resize", "Upsample",
})  # fmt: skip
_ROWS = frozenset({"MatMul", "MatMulInteger", "Gemm", "LayerNormalization", "QLinearMatMul", "Softmax"})
# Nodes that are looked at to find such a reader.
_MOST_NODES = 32


def transpose(node: NodeView) -> Step:
    """Transpose of any axes."""
    rank = len(node.dims(0))
    order = tuple(int(axis) for axis in node.attribute("perm") or range(rank)[::-1])
    if sorted(order) != list(range(rank)):
        raise NotLowered(f"its order {list(order)} is none of {rank} axes")
    return moved(node, Transposed(order), node.output)


def moved(node: NodeView, spec: Transposed | Sliced | OpenSliced | Repeated, output: str, position: int = 0) -> Step:
    """The step that makes ``output`` of the node's operand at ``position``."""
    name = node.input(position)
    node.check_activation(name)
    if name in node.graph.constants:
        raise NotLowered(f"{name!r} is a constant")
    dims = node.dims(position)
    if not dims:
        raise NotLowered("its operand is a number")
    axis = None
    if isinstance(spec, OpenSliced) or (isinstance(spec, Sliced) and not spec.drops):
        axis = spec.ranges[0].axis if len(spec.ranges) == 1 else None
    result_view = view_of_result(node, output, result_dims(spec, dims), name, axis)
    return Step(spec, (name,), output, view_of_moved(node, name, result_view), result_view, (node.index,))


def view_of_moved(node: NodeView, name: str, result_view: View) -> View:
    """How an operand of a step that moves values is read: one from outside as the result is, where that is possible."""
    is_image = result_view == "image" and len(dims_of(node.graph, name, node.known_dims)) == 4
    return node.views.get(name) or ("image" if is_image else "rows")


def view_of_result(node: NodeView, name: str, dims: Dims, operand: str = "", axis: int | None = None) -> View:
    """How readers want a value that is moved anyway.

    Args:
        node: that makes it.
        name: of the value.
        dims: its sizes.
        operand: name of what it is cut from, or of a part of it.
        axis: along which it is cut or joined; None where axes change.
    """
    if len(dims) != 4:
        return "rows"
    found = _view_of_readers(node.graph, name)
    if found is None and axis is not None:
        # No reader minds: what was an image stays one.
        found = node.views.get(operand) or ("image" if axis == 1 else "rows")
    return found or "rows"


def _view_of_readers(graph: GraphView, name: str) -> View | None:
    """What the first operator of images or of rows is for that reads a value, or what is made of it."""
    seen = {name}
    waiting = [name]
    for value in waiting:
        for index in graph.readers.get(value, ()):
            node = graph.nodes[index]
            if is_standard_op(node, *_IMAGES):
                return "image"
            if is_standard_op(node, *_ROWS):
                return "rows"
            # Frames of volumes keep their channels, whatever axes they have in between.
            is_move = index in graph.moves
            if is_standard_op(node, "Transpose") and not is_move:
                continue  # What is made of it has other channels.
            made = [n for n in node.output if n and n not in seen and (is_move or len(graph.dims(n) or ()) == 4)]
            if len(waiting) < _MOST_NODES:
                waiting += made
                seen.update(made)
    return None
