"""Layer and RMS normalization as an operator, and the nodes that its spellings have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op

__all__ = [
    "MEANS",
    "NormMatch",
    "Vector",
    "is_over_channels",
    "maker",
    "mean_of_squares",
    "norm_of",
    "reciprocal",
    "vector_behind",
]

# What takes means over channels; tf2onnx writes that of three axes as a pooling.
MEANS = ("GlobalAveragePool", "ReduceMean")

# One number for each channel, where there is such an operand.
Vector = npt.NDArray[np.float32] | None


@dataclass(frozen=True)
class NormMatch:
    """One occurrence.

    Attributes:
        operand: name of x.
        scale: one number for each channel.
        shift: likewise.
        epsilon: what is added to the mean of squares.
        is_centered: whether the mean is taken off.
        least: what the mean of squares counts as at least.
        of_pixels: whether x is an image, and channels are its second axis; else they are the last one.
        nodes: indices of its nodes, ascending; the last one makes the result.
    """

    operand: str
    scale: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]
    epsilon: float
    is_centered: bool
    nodes: tuple[int, ...]
    least: float = 0.0
    of_pixels: bool = False


def norm_of(
    operand: str,
    channels: int,
    scale: Vector,
    shift: Vector,
    epsilon: float,
    is_centered: bool,
    nodes: set[int],
    of_pixels: bool = False,
) -> NormMatch:
    """The match of these nodes; see there. Scale and shift may be left out."""
    ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    scale, shift = ones if scale is None else scale, zeros if shift is None else shift
    return NormMatch(operand, scale, shift, epsilon, is_centered, tuple(sorted(nodes)), of_pixels=of_pixels)


def mean_of_squares(graph: GraphView, name: str, nodes: set[int], of_pixels: bool = False) -> tuple[str, float] | None:
    """What is squared in ``mean(square) + epsilon``, and epsilon; the nodes join ``nodes``."""
    added = maker(graph, name, "Add")
    if added is None or graph.only_reader(name) is None:
        return None
    for mean, number in (graph.nodes[added].input, reversed(graph.nodes[added].input)):
        epsilon, reduced = graph.number(number), maker(graph, mean, *MEANS)
        if epsilon is None or not epsilon > 0 or reduced is None or not is_over_channels(graph, reduced, of_pixels):
            continue
        square = graph.nodes[reduced].input[0]
        power = maker(graph, square, "Pow", "Mul")
        if power is None or graph.only_reader(mean) is None or graph.only_reader(square) is None:
            return None
        base, exponent = graph.nodes[power].input
        if base != exponent if graph.nodes[power].op_type == "Mul" else graph.number(exponent) != 2:
            return None
        nodes |= {added, reduced, power}
        return base, epsilon
    return None


def reciprocal(graph: GraphView, root: int, nodes: set[int]) -> str | None:
    """One by the root."""
    reader = graph.only_reader(graph.nodes[root].output[0])
    if reader is None:
        return None
    node = graph.nodes[reader]
    if not (is_standard_op(node, "Reciprocal") or (is_standard_op(node, "Div") and graph.number(node.input[0]) == 1)):
        return None
    nodes.add(reader)
    return node.output[0]


def vector_behind(
    graph: GraphView, value: str, op: str, dims: Dims, nodes: set[int], of_pixels: bool = False
) -> tuple[Vector, str]:
    """A number for each channel that a node combines ``value`` with, and its result; None and ``value`` without one."""
    reader = graph.only_reader(value)
    if reader is None or not is_standard_op(graph.nodes[reader], op):
        return None, value
    others = [name for name in graph.nodes[reader].input if name != value]
    vector = graph.values_of(others[0]) if len(others) == 1 else None
    if vector is None or vector.dtype != np.float32 or not np.isfinite(vector).all():
        return None, value
    axis = 1 - len(dims) if of_pixels else -1
    if vector.ndim < -axis or vector.shape[axis] != dims[axis] or vector.size != dims[axis] or vector.ndim > len(dims):
        return None, value
    nodes.add(reader)
    return np.array(vector.reshape(-1), np.float32), graph.nodes[reader].output[0]


def is_over_channels(graph: GraphView, reduced: int, of_pixels: bool = False) -> bool:
    """Whether a node reduces the last axis, which stays; ``of_pixels``: the second one of an image."""
    node = graph.nodes[reduced]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    dims = graph.dims(node.input[0])
    if node.op_type == "GlobalAveragePool":
        return dims is not None and len(dims) == 3 and not of_pixels
    axes = attributes.get("axes")
    if len(node.input) > 1 and node.input[1]:
        axes = graph.vector(node.input[1])
    if dims is None or axes is None or attributes.get("keepdims", 1) != 1 or (of_pixels and len(dims) != 4):
        return False
    channels = 1 if of_pixels else len(dims) - 1
    return [axis % len(dims) if isinstance(axis, int) else None for axis in axes] == [channels]


def maker(graph: GraphView, name: str, *ops: str) -> int | None:
    """The index of the node that makes a value, if it is one of these standard operators."""
    index = graph.producers.get(name)
    return index if index is not None and is_standard_op(graph.nodes[index], *ops) else None
