"""QuantizeLinear that is spelled as arithmetic, with or without a DequantizeLinear after it.

``Cast(Clip(Round(x / scale) + zero))`` quantizes. Quantization-aware training rounds floats, and makes no integers of
them: ``(Clip(Round(x / scale) + zero) - zero) * scale`` does both. The clip may come before the rounding, and a product
with the inverse may stand for the quotient. A straight-through estimator is exported as ``Round(u) - u + u``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.matching.affine_chains import Affine, NoAffine, along_axis, constant_operand

__all__ = ["Quantizing", "find_quantizings"]

_Values = npt.NDArray[np.float64]
_BYTES: Mapping[int, np.dtype[np.integer]] = {
    onnx.TensorProto.UINT8: np.dtype(np.uint8),
    onnx.TensorProto.INT8: np.dtype(np.int8),
}
_NUMBERS = (onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.INT64)
# Nodes on either side of the one that rounds.
_MOST_NODES = 6
# How far a zero point is from an integer, and how far from 1 the product of a factor and its inverse.
_NEAR_INTEGER, _NEAR_ONE = 1e-3, 1e-4


@dataclass(frozen=True)
class Quantizing:
    """Integers from ``low`` to ``high`` made of floats, or floats rounded to what such integers stand for.

    Attributes:
        nodes: indices, ascending; the last one makes the result.
        operand: the floats.
        scale: of a step; of several, one for each position of ``axis``.
        zero: the integer that stands for zero.
        low: lowest integer.
        high: highest integer.
        dtype: of the integers.
        axis: along which scales lie; None for one scale.
        makes_floats: whether the result is floats again.
    """

    nodes: tuple[int, ...]
    operand: str
    scale: _Values
    zero: int
    low: int
    high: int
    dtype: np.dtype[np.integer]
    axis: int | None
    makes_floats: bool


def find_quantizings(graph: GraphView) -> list[Quantizing]:
    """All occurrences around a Round of floats."""
    roundings = (index for index, node in enumerate(graph.nodes) if is_standard_op(node, "Round"))
    return [found for index in roundings if (found := _quantizing(graph, index)) is not None]


def _quantizing(graph: GraphView, rounding: int) -> Quantizing | None:
    before = list(_before(graph, rounding))
    # As much as possible: a clip may stand before the division.
    for count in range(len(before), 0, -1):
        nodes = before[:count][::-1]
        operand = _operand(graph, nodes[0])
        if graph.elem_type(operand) != onnx.TensorProto.FLOAT:
            continue
        try:
            steps = _applied(graph, nodes, operand)
            found = _after(graph, rounding, steps, nodes, operand)
        except NoAffine:
            continue
        if found is not None:
            return found
    return None


def _before(graph: GraphView, rounding: int) -> Iterator[int]:
    """Nodes before a Round that only it needs, the nearest one first, each with one operand that is no constant."""
    node = graph.nodes[rounding]
    name = node.input[0]
    readers = {rounding, *_straight_through(graph, node.output[0], name)}
    for _ in range(_MOST_NODES):
        index = graph.producers.get(name)
        if index is None or constant_operand(graph, index) is None or not graph.is_only_read_by(name, readers):
            return
        yield index
        name, readers = _operand(graph, index), {index}


def _operand(graph: GraphView, index: int) -> str:
    found = constant_operand(graph, index)
    assert found is not None
    return found.operand


def _applied(graph: GraphView, nodes: Iterable[int], name: str) -> Affine:
    """What nodes make of a value, one after another."""
    made = Affine()
    for index in nodes:
        made = made.after(graph, index, name)
        name = graph.nodes[index].output[0]
    return made


def _straight_through(graph: GraphView, result: str, operand: str) -> tuple[int, ...]:
    """The nodes of ``result - operand + operand``, which only passes gradients on; none where there are none."""
    first = graph.only_reader(result)
    if first is None or not is_standard_op(graph.nodes[first], "Sub"):
        return ()
    difference = graph.nodes[first].output[0]
    second = graph.only_reader(difference)
    if second is None or not is_standard_op(graph.nodes[second], "Add"):
        return ()
    is_whole = set(graph.nodes[second].input) == {difference, operand}
    return (first, second) if is_whole and list(graph.nodes[first].input) == [result, operand] else ()


def _after(graph: GraphView, rounding: int, steps: Affine, before: list[int], operand: str) -> Quantizing | None:
    """What follows a Round of ``steps``, up to where integers or floats are made of it; None where neither is."""
    node = graph.nodes[rounding]
    nodes = [*before, rounding, *_straight_through(graph, node.output[0], node.input[0])]
    whole = Affine(low=np.rint(steps.low), high=np.rint(steps.high))
    name = graph.nodes[nodes[-1]].output[0]
    for _ in range(_MOST_NODES):
        index = graph.only_reader(name)
        if index is None:
            return None
        node = graph.nodes[index]
        nodes.append(index)
        if is_standard_op(node, "Cast"):
            to = next((a.i for a in node.attribute if a.name == "to"), 0)
            if to in _BYTES:
                return _of_integers(graph, nodes, operand, steps, whole, _BYTES[to])
            if to not in _NUMBERS or _integer(whole.shift) is None or np.any(whole.factor != 1):
                return None
        else:
            whole = whole.after(graph, index, name)
            found = _of_floats(graph, nodes, operand, steps, whole)
            if found is not None:
                more = _straight_through(graph, node.output[0], operand)
                return replace(found, nodes=(*found.nodes, *more))
        name = node.output[0]
    return None


def _of_integers(
    graph: GraphView, nodes: list[int], operand: str, steps: Affine, whole: Affine, dtype: np.dtype[np.integer]
) -> Quantizing | None:
    """Integers of ``dtype``, from rounded ``steps`` after ``whole``."""
    limits = np.iinfo(dtype)
    zero = _integer(steps.shift + whole.shift)
    low, high = _integer(whole.low), _integer(whole.high)
    if zero is None or low is None or high is None or np.any(whole.factor != 1):
        return None
    if not limits.min <= low <= high <= limits.max or not limits.min <= zero <= limits.max:
        return None
    return _found(graph, nodes, operand, 1 / steps.factor, (zero, low, high), dtype, makes_floats=False)


def _of_floats(graph: GraphView, nodes: list[int], operand: str, steps: Affine, whole: Affine) -> Quantizing | None:
    """Floats of rounded ``steps`` after ``whole``, where that undoes what was done before rounding."""
    if np.any(np.abs(whole.factor * steps.factor - 1) > _NEAR_ONE):
        return None
    zero = _integer(steps.shift)
    if zero is None or np.any(np.abs(whole.shift / whole.factor + steps.shift) > _NEAR_INTEGER):
        return None
    low, high = (_integer((end - whole.shift) / whole.factor - zero) for end in (whole.low, whole.high))
    if low is None or high is None or not low <= 0 <= high or high - low > np.iinfo(np.uint8).max:
        return None
    limits = np.iinfo(np.int8)
    if low < 0 and low >= limits.min and high <= limits.max:
        return _found(graph, nodes, operand, whole.factor, (0, low, high), np.dtype(np.int8), makes_floats=True)
    ends = (-low, 0, high - low)
    return _found(graph, nodes, operand, whole.factor, ends, np.dtype(np.uint8), makes_floats=True)


def _found(
    graph: GraphView, nodes: list[int], operand: str, scale: _Values, integers: tuple[int, int, int],
    dtype: np.dtype[np.integer], makes_floats: bool,
) -> Quantizing | None:  # fmt: skip
    lying = along_axis(graph, operand, nodes[-1], scale)
    if lying is None:
        return None
    zero, low, high = integers
    return Quantizing(tuple(nodes), operand, lying[0], zero, low, high, dtype, lying[1], makes_floats)


def _integer(values: _Values) -> int | None:
    """The integer that all of these are, but for rounding."""
    if not np.isfinite(values).all() or not values.size:
        return None
    nearest = np.rint(values)
    is_one = np.all(np.abs(values - nearest) <= _NEAR_INTEGER) and np.all(nearest == nearest.reshape(-1)[0])
    return int(nearest.reshape(-1)[0]) if is_one else None
