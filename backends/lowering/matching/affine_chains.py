"""Chains of nodes that multiply a value by constants, add constants to it and cut it off."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op

__all__ = ["Affine", "NoAffine", "Operand", "along_axis", "constant_operand", "is_stored"]

_Values = npt.NDArray[np.float64]
_COMMUTES = ("Add", "Max", "Min", "Mul")
_IN_ORDER = ("Clip", "Div", "Sub")
# A chain's constants are numbers, or one number for each channel.
_MOST_ELEMENTS = 1 << 16


class NoAffine(Exception):  # noqa: N818 - an answer, not an error
    """A node that does something else."""


@dataclass(frozen=True)
class Operand:
    """Of a node whose other inputs are constants.

    Attributes:
        operand: the input that is none.
        constants: values of the others; of Clip both ends.
    """

    operand: str
    constants: tuple[_Values, ...]


def constant_operand(graph: GraphView, index: int) -> Operand | None:
    """The operand of a node that is one of a chain; None for any other node."""
    node = graph.nodes[index]
    if is_standard_op(node, "Clip"):
        ends = [(node.input[i] if i < len(node.input) else "") for i in (1, 2)]
        attributes = {a.name: a.f for a in node.attribute}
        given = [
            np.array(attributes.get(name, default)) if not end else _values(graph, end)
            for end, name, default in zip(ends, ("min", "max"), (-np.inf, np.inf), strict=True)
        ]
        low, high = given
        return None if low is None or high is None else Operand(node.input[0], (low, high))
    if not is_standard_op(node, *_COMMUTES, *_IN_ORDER) or len(node.input) != 2:
        return None
    # Where a weight is rounded, both are constants; the larger one is the weight.
    positions = sorted((1, 0) if node.op_type in _COMMUTES else (1,), key=lambda i: _count(graph, node.input[i]))
    for position in positions:
        values = _values(graph, node.input[position])
        if values is not None:
            return Operand(node.input[1 - position], (values,))
    return None


def _count(graph: GraphView, name: str) -> float:
    sizes = graph.dims(name)
    return math.inf if sizes is None else math.prod(size if isinstance(size, int) else math.inf for size in sizes)


def _values(graph: GraphView, name: str) -> _Values | None:
    if not 0 < _count(graph, name) <= _MOST_ELEMENTS or not (name in graph.constants or name in graph.derived):
        return None
    values = graph.folded_values(name)
    if values is None or values.dtype.kind not in "fiu":
        return None
    found = values.astype(np.float64)
    return found if np.isfinite(found).all() else None


@dataclass(frozen=True)
class Affine:
    """``clip(factor * x + shift, low, high)``, elements broadcast against those of x; factors are positive."""

    factor: _Values = field(default_factory=lambda: np.ones(1))
    shift: _Values = field(default_factory=lambda: np.zeros(1))
    low: _Values = field(default_factory=lambda: np.full(1, -np.inf))
    high: _Values = field(default_factory=lambda: np.full(1, np.inf))

    def after(self, graph: GraphView, index: int, name: str) -> Affine:
        """With what a node does to the value ``name``.

        Raises:
            NoAffine: it does something else, or to another value, or turns the order of values.
        """
        found = constant_operand(graph, index)
        if found is None or found.operand != name:
            raise NoAffine
        first, *others = found.constants
        op = graph.nodes[index].op_type
        if op in ("Mul", "Div"):
            if np.any(first <= 0):
                raise NoAffine
            factor = first if op == "Mul" else 1 / first
            return Affine(self.factor * factor, self.shift * factor, self.low * factor, self.high * factor)
        if op in ("Add", "Sub"):
            shift = first if op == "Add" else -first
            return replace(self, shift=self.shift + shift, low=self.low + shift, high=self.high + shift)
        low = first if op in ("Clip", "Max") else np.full(1, -np.inf)
        high = others[0] if op == "Clip" else first if op == "Min" else np.full(1, np.inf)
        return replace(self, low=np.clip(self.low, low, high), high=np.clip(self.high, low, high))


def is_stored(graph: GraphView, name: str) -> bool:
    """Whether a value is a constant with axes, or made of constants."""
    return (name in graph.constants or name in graph.derived) and len(graph.dims(name) or ()) > 1


def along_axis(graph: GraphView, operand: str, last: int, *values: _Values) -> tuple[_Values, int | None] | None:
    """The first of ``values``, which are scales, as a vector, and the axis of the operand that it lies along.

    The others are of one element, or lie along the same axis. None where they lie along several axes or belong to
    activations, which the kernels have one scale for; where the last node has other axes than the operand; and where
    float32 does not have the scales.
    """
    dims, made = graph.dims(operand), graph.dims(graph.nodes[last].output[0])
    first = values[0]
    limits = np.finfo(np.float32)
    if (
        dims is None
        or made is None
        or len(dims) != len(made)
        or np.any(first < limits.tiny)
        or np.any(first > limits.max)
    ):
        return None
    if all(own.size == 1 for own in values):
        return first.reshape(-1), None
    shape = np.broadcast_shapes(*(own.shape for own in values))
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    if len(axes) != 1 or not is_stored(graph, operand):
        return None
    return np.broadcast_to(first, shape).reshape(-1), axes[0] + len(dims) - len(shape)
