"""ArgMax, ArgMin and TopK, and GatherElements and Cast of the integers that they make."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.graph import behind_identities, is_standard_op
from sift_onnx.backends.lowering.names import made_name
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step, View
from sift_onnx.backends.lowering.specs import ArgExtreme, CastIntegers, GatherElements, GatherRows, TopK

__all__ = [
    "arg_extreme",
    "before_repeating_places",
    "cast_integers",
    "gather_elements",
    "gather_rows",
    "is_lookup",
    "makes_integers",
    "reads_integers",
    "top_k",
]


def arg_extreme(node: NodeView) -> Step:
    """ArgMax and ArgMin over any axis."""
    dims = node.dims(0)
    axis, view = _axis(node, 0)
    keep_axes = bool(node.attribute("keepdims", 1))
    if dims[axis] == 0:
        raise NotLowered("its axis has no positions")
    spec = ArgExtreme(
        "max" if node.op == "ArgMax" else "min", axis, keep_axes, bool(node.attribute("select_last_index", 0))
    )
    return _of_integers(node.step(spec, view, view if keep_axes else "rows"))


def top_k(node: NodeView) -> tuple[Step, ...]:
    """TopK of a number that is known before a run: the places, and the values that are there."""
    values, places, *_ = (*node.proto.output, "")
    size = node.dims(0)[_axis(node, -1)[0]]
    k = node.attribute("k") if node.graph.opset < 10 else node.graph.number(node.input(1))
    if k is None:
        raise NotLowered(f"its k {node.input(1)!r} is {node.why_not_constant(1)}")
    if k < 1 or (isinstance(size, int) and k > size):
        raise NotLowered(f"it takes {k:.0f} of {size} values")
    axis, view = _axis(node, -1)
    spec = TopK(int(k), axis, "max" if node.attribute("largest", 1) else "min")
    places = places or made_name(values, "places")
    found = _of_integers(Step(spec, (node.input(0),), places, view, view, (node.index,)))
    if not values:
        return (found,)
    taken = GatherElements(axis)
    return found, Step(taken, (node.input(0), places), values, view, view, (node.index,))


def gather_elements(node: NodeView) -> Step:
    """GatherElements by indices of sizes that differ from the values' along the axis.

    An Expand or Tile of indices along the axes behind it is not needed: whole rows are gathered by one index each.
    """
    values, places = node.dims(0), node.dims(1)
    axis, view = _axis(node, 0)
    at = axis % len(values)
    repeated = before_repeating_places(node, 1, at, values)
    if not repeated and (*values[:at], *values[at + 1 :]) != (*places[:at], *places[at + 1 :]):
        raise NotLowered("its operands are not known to be of one shape but for the axis")
    name = repeated or node.input(1)
    if not reads_integers(node, name):
        raise NotLowered(f"its indices {node.input(1)!r} are constants, or no int64")
    spec = GatherElements(axis, repeats=bool(repeated))
    return replace(node.step(spec, view), inputs=(node.input(0), name))


def before_repeating_places(node: NodeView, position: int, axis: int, values: Dims) -> str:
    """Places of one position along the axes behind ``axis``, which a node repeats to those of ``values``; or empty.

    Args:
        node: that reads the places.
        position: of the input that they are.
        axis: along which they are places.
        values: sizes of what has a place.
    """
    graph, behind = node.graph, axis + 1
    producer = graph.producers.get(behind_identities(graph, node.input(position)))
    if producer is None or behind == len(values) or not is_standard_op(graph.nodes[producer], "Expand", "Tile"):
        return ""
    name, listed = graph.nodes[producer].input
    dims, target = node.known_dims.get(name) or graph.dims(name), graph.vector(listed)
    if dims is None or target is None or not len(dims) == len(target) == len(values):
        return ""
    if dims[:axis] != values[:axis] or any(size != 1 for size in dims[behind:]):
        return ""
    is_tile = graph.nodes[producer].op_type == "Tile"
    stay = [size == 1 or (not is_tile and size == own) for size, own in zip(target, dims, strict=True)][:behind]
    return name if all(stay) and target[behind:] == values[behind:] else ""


def gather_rows(node: NodeView) -> Step:
    """Gather of rows of a matrix, by integers that are made in the kernels or come from outside."""
    sizes = _row_sizes(node)
    if sizes is None:
        raise NotLowered("it gathers by integers of a kernel what are no rows of a matrix")
    view = node.views.get(node.input(1), "rows")
    step = node.step(GatherRows(sizes, drops=node.op == "GatherND"), view, "rows", operands=(1, 0))
    return replace(step, dtype=DType.INT64)


def is_lookup(node: NodeView) -> bool:
    """Whether a Gather takes rows of a matrix by integers that differ from run to run, as an embedding does."""
    return _is_read(node, node.input(1)) and _row_sizes(node) is not None and bool(node.dims(1))


def _row_sizes(node: NodeView) -> tuple[int, ...] | None:
    """Sizes of a row where a Gather, or GatherND, takes rows of a matrix, or of an activation of more axes; or None."""
    table, name = node.constant(0), node.input(0)
    dims = node.known_dims.get(name) or node.graph.dims(name) or ()
    if len(dims) < 2 or int(node.attribute("axis", 0)) not in (0, -len(dims)) or node.attribute("batch_dims", 0):
        return None
    if node.op == "GatherND" and node.dims(1)[-1] != 1:
        return None
    if table is not None:
        is_matrix = np.dtype(table.dtype) == np.float32 and len(table.shape) == 2
        return (int(table.shape[1]),) if is_matrix else None
    sizes = tuple(size for size in dims[1:] if isinstance(size, int) and size > 0)
    is_float = node.graph.elem_type(name) == DType.FLOAT32.onnx_type
    return sizes if is_float and len(sizes) == len(dims) - 1 else None


def cast_integers(node: NodeView) -> Step:
    """Cast of int64 to floats."""
    if node.graph.elem_type(node.output) != DType.FLOAT32.onnx_type:
        raise NotLowered("it makes integers of another type")
    view = node.views[node.input(0)]
    return replace(node.step(CastIntegers(), view), dtype=DType.INT64)


def makes_integers(node: NodeView, position: int) -> bool:
    """Whether an input is int64 that a step before the node makes."""
    return _is_integer_made(node, node.input(position))


def reads_integers(node: NodeView, name: str) -> bool:
    """Whether a value is int64 that a step before the node makes, or that differs from run to run."""
    return _is_integer_made(node, name) or _is_read(node, name)


def _is_read(node: NodeView, name: str) -> bool:
    """Whether a value comes from outside, differs from run to run, and is int64."""
    is_computed = name not in node.graph.constants and name not in node.graph.derived
    return is_computed and name not in node.views and node.graph.elem_type(name) == DType.INT64.onnx_type


def _is_integer_made(node: NodeView, name: str) -> bool:
    return name in node.views and node.graph.elem_type(name) == DType.INT64.onnx_type


def _axis(node: NodeView, default: int) -> tuple[int, View]:
    """The axis of the first operand that the node is over, and how the operand is read: channels where that can be."""
    rank = len(node.dims(0))
    axis = int(node.attribute("axis", default))
    if not -rank <= axis < rank:
        raise NotLowered(f"its axis {axis} is none of {rank}")
    axis %= rank
    if axis == rank - 1:
        return -1, node.operand(0, "rows")
    if axis == 1 and rank == 4:
        return axis, node.operand(0, "image")
    return axis, node.operand(0)


def _of_integers(step: Step) -> Step:
    return replace(step, result_dtype=DType.INT64)
