"""DequantizeLinear that is spelled as arithmetic: ``(Cast(q) - zero) * scale``, as layers written by hand export it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.matching.affine_chains import Affine, NoAffine, along_axis, is_stored

__all__ = ["Dequantizing", "find_dequantizings"]

_Values = npt.NDArray[np.float64]
_BYTES: Mapping[int, np.dtype[np.integer]] = {
    onnx.TensorProto.UINT8: np.dtype(np.uint8),
    onnx.TensorProto.INT8: np.dtype(np.int8),
}
# How far a zero point is from an integer.
_NEAR_INTEGER = 1e-3
# Nodes between a quantizer and the one that dequantizes.
_MOST_NODES = 6
# What may stand between a quantizer and what reads its integers.
_KEEPS_BYTES = ("Cast", "Clip", "Flatten", "Identity", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


@dataclass(frozen=True)
class Dequantizing:
    """Floats that integers stand for.

    Attributes:
        nodes: indices, ascending; the last one makes the result.
        operand: the integers.
        scale: of a step; of several, one for each position of ``axis``.
        zero: the integers that stand for zero, as many.
        dtype: of the integers.
        axis: along which scales lie; None for one scale.
    """

    nodes: tuple[int, ...]
    operand: str
    scale: _Values
    zero: _Values
    dtype: np.dtype[np.integer]
    axis: int | None


def find_dequantizings(graph: GraphView, made: Iterable[str]) -> list[Dequantizing]:
    """All occurrences after constant integers, or after integers of a quantizer.

    Args:
        graph: the model.
        made: integers that arithmetic quantizes.
    """
    known = set(made)
    casts = (index for index, node in enumerate(graph.nodes) if is_standard_op(node, "Cast"))
    return [found for index in casts if (found := _dequantizing(graph, index, known)) is not None]


def _dequantizing(graph: GraphView, cast: int, known: set[str]) -> Dequantizing | None:
    operand = graph.nodes[cast].input[0]
    kind = graph.elem_type(operand)
    if kind not in _BYTES or not (is_stored(graph, operand) or _is_quantized(graph, operand, known)):
        return None
    nodes, made, name = [cast], Affine(), graph.nodes[cast].output[0]
    for ops in (("Add", "Sub"), ("Cast",), ("Div", "Mul")):
        index = graph.only_reader(name)
        if index is None or not is_standard_op(graph.nodes[index], *ops):
            continue
        if ops != ("Cast",):
            try:
                made = made.after(graph, index, name)
            except NoAffine:
                break
        nodes.append(index)
        name = graph.nodes[index].output[0]
    if graph.elem_type(name) != onnx.TensorProto.FLOAT:
        return None
    dtype = _BYTES[kind]
    zero = np.rint(-made.shift / made.factor)
    is_exact = np.all(np.abs(zero * made.factor + made.shift) <= _NEAR_INTEGER * made.factor)
    if not is_exact or np.any(zero < np.iinfo(dtype).min) or np.any(zero > np.iinfo(dtype).max):
        return None
    lying = along_axis(graph, operand, nodes[-1], made.factor, zero)
    if lying is None:
        return None
    if len(nodes) == 1 and not is_stored(graph, operand):
        return None
    scale, axis = lying
    zero = np.broadcast_to(zero.reshape(-1), scale.shape)
    return Dequantizing(tuple(nodes), operand, scale, zero, dtype, axis)


def _is_quantized(graph: GraphView, name: str, known: set[str]) -> bool:
    """Whether a value is integers that a quantizer made, moved at most."""
    for _ in range(_MOST_NODES):
        if name in known:
            return True
        index = graph.producers.get(name)
        if index is None:
            return False
        if is_standard_op(graph.nodes[index], "QuantizeLinear"):
            return True
        if not is_standard_op(graph.nodes[index], *_KEEPS_BYTES):
            return False
        name = graph.nodes[index].input[0]
    return False
