"""Integer tensors of one axis, and single numbers, that nodes compute of sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from sift_onnx.backends.lowering.dims import Dim, product
from sift_onnx.backends.lowering.sizes.known import KnownSizes
from sift_onnx.backends.lowering.sizes.size_arithmetic import computed

__all__ = ["number_of_result", "vector_of_result"]

_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)


def vector_of_result(known: KnownSizes, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> tuple[Dim, ...] | None:
    """Elements of a node's result, where it is an integer tensor of one axis or none; None where they are unknown."""
    if node.op_type == "Shape":
        dims = known.dims(node.input[0])
        return dims[attributes.get("start", 0) : attributes.get("end", len(dims))] if dims is not None else None
    if node.op_type == "Concat":
        parts = [known.vector(name) for name in node.input]
        return None if None in parts else tuple(size for part in parts if part is not None for size in part)
    if node.op_type == "ConstantOfShape":
        shape = known.integers(node.input[0])
        values = next((onnx.numpy_helper.to_array(a.t) for a in node.attribute if a.name == "value"), np.zeros(1))
        return (int(values[0]),) * shape[0] if shape is not None and len(shape) == 1 else None
    if node.op_type == "Where":
        chosen, first, second = (known.vector(name) for name in node.input)
        if not chosen or first is None or second is None or len({len(chosen), len(first), len(second)}) > 1:
            return None
        return tuple(a if c else b for c, a, b in zip(chosen, first, second, strict=True))
    first = known.vector(node.input[0]) if node.input else None
    if first is None and node.op_type == "Cast" and node.input[0] in known.numbers:
        # Sizes that were divided and rounded as floats.
        return (int(known.numbers[node.input[0]]),) if attributes["to"] in _INTEGERS else None
    if first is None:
        return None
    match node.op_type:
        case "Cast":
            return first if attributes["to"] in _INTEGERS else None
        case "Identity" | "Squeeze" | "Unsqueeze" | "Reshape":
            dims = known.dims(node.output[0])
            return first if dims is not None and len(dims) <= 1 else None
        case "Gather":
            places = known.constant(node.input[1])
            if places is None or places.ndim > 1:
                return None
            return tuple(first[int(place)] for place in places.reshape(-1))
        case "Slice":
            listed = [known.constant(name) for name in node.input[1:]]
            if any(values is None or values.size != 1 for values in listed):
                return None
            start, end, *rest = (int(values.reshape(-1)[0]) for values in listed if values is not None)
            step = rest[1] if len(rest) > 1 else 1
            return first[start:end:step] if step > 0 else None
        case "Neg":
            return tuple(product((-1, size)) for size in first)
        case "ReduceProd":
            dims = known.dims(node.input[0])
            rank = None if dims is None else len(dims)
            return (product(first),) if rank == 1 and not attributes.get("noop_with_empty_axes", 0) else None
        case "Mul" | "Div" | "Add" | "Sub" | "Equal" | "Max" | "Min" | "Mod":
            if len(node.input) != 2 or attributes.get("fmod", 0):
                return None
            return computed(node.op_type, first, known.vector(node.input[1]))
    return None


def number_of_result(known: KnownSizes, node: onnx.NodeProto) -> float | None:
    """The number that a node makes of numbers in float32, as exporters do with sizes and scales; None for others."""
    if node.op_type not in ("Cast", "Ceil", "Floor", "Sqrt", "Reciprocal", "Div", "Mul", "Pow"):
        return None
    if node.op_type == "Cast":
        to_float = any(a.i == onnx.TensorProto.FLOAT for a in node.attribute if a.name == "to")
        return known.number(node.input[0]) if to_float else None
    if not known.is_float(node.input[0]):
        return None
    numbers = [known.number(name) for name in node.input]
    if any(number is None for number in numbers):
        return None
    first, *rest = (np.float32(number) for number in numbers if number is not None)
    match node.op_type:
        case "Ceil":
            return float(np.ceil(first))
        case "Floor":
            return float(np.floor(first))
        case "Sqrt":
            return float(np.sqrt(first)) if first >= 0 else None
        case "Reciprocal":
            return float(np.float32(1) / first) if first else None
        case "Mul":
            return float(first * rest[0])
        case "Pow":
            return float(first ** rest[0]) if first > 0 else None
    return float(first / rest[0]) if rest[0] else None
