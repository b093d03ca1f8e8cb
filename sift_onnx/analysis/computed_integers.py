"""Integers that a graph makes of constants: quantized from floats, as after quantization-aware training, or cast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import array_of, constant_values, named
from sift_onnx.operators.domains import is_standard

__all__ = ["Integers", "integers_of"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Integers:
    """Integers, and what they are made of.

    Attributes:
        stored: the constant, by the name of its tensor: the integers themselves, or the floats that they quantize.
        values: the integers.
    """

    stored: gs.Constant
    values: Array


def integers_of(tensor: gs.Tensor) -> Integers | None:
    """The integers that a tensor is in every run; None where that is not known here."""
    constant = constant_values(tensor)
    if constant is not None:
        return Integers(named(constant, tensor.name), array_of(constant))
    node = tensor.inputs[0] if len(tensor.inputs) == 1 else None
    rule = _RULES.get(node.op) if node is not None and is_standard(node.domain) else None
    if node is None or rule is None or not node.inputs:
        return None
    first = integers_of(node.inputs[0])
    others = [None if other.is_empty() else integers_of(other) for other in node.inputs[1:]]
    given = [not other.is_empty() for other in node.inputs[1:]]
    if first is None or any(is_given and other is None for is_given, other in zip(given, others, strict=True)):
        return None
    values = rule(node, first.values, [None if other is None else other.values for other in others])
    return None if values is None else Integers(first.stored, values)


def _quantized(node: gs.Node, x: Array, others: Sequence[Array | None]) -> Array | None:
    scale, zero, *_ = (*others, None)
    if scale is None or scale.ndim > 1 or x.dtype.kind != "f":
        return None
    kind = int(node.attrs.get("output_dtype", 0)) or onnx.TensorProto.UINT8
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)) if zero is None else zero.dtype
    if dtype.kind not in "iu":
        return None
    axis = int(node.attrs.get("axis", 1)) % max(x.ndim, 1)
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    steps = np.rint(x / (scale.reshape(shape) if scale.size > 1 else scale.reshape(())))
    if zero is not None:
        steps = steps + (zero.reshape(shape) if zero.size > 1 else zero.reshape(()))
    limits = np.iinfo(dtype)
    return np.clip(steps, limits.min, limits.max).astype(dtype)


def _clipped(_node: gs.Node, x: Array, others: Sequence[Array | None]) -> Array:
    low, high, *_ = (*others, None, None)
    return np.clip(x, low, high) if low is not None or high is not None else x


def _cast(node: gs.Node, x: Array, _others: Sequence[Array | None]) -> Array | None:
    kind = int(node.attrs.get("to", 0))
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    return x.astype(dtype) if dtype.kind in "iuf" and x.dtype.kind in "iuf" else None


_RULES: Mapping[str, Callable[[gs.Node, Array, Sequence[Array | None]], Array | None]] = {
    "Cast": _cast,
    "Clip": _clipped,
    "Identity": lambda _node, x, _others: x,
    "QuantizeLinear": _quantized,
}
