"""Integer tensors of several axes whose elements are sizes, and what nodes put in another order of them.

torch exports the pads of a padding as a table of pairs, which it turns around and lays flat again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from sift_onnx.backends.lowering.sizes.known import MOST_ELEMENTS, KnownSizes, SmallTensor
from sift_onnx.shapes.numpy_ops import MOVING, compute

__all__ = ["moved_tensor"]

_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)


def moved_tensor(known: KnownSizes, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> SmallTensor | None:
    """The first result of a node that only moves elements of small integer tensors; None for others.

    Args:
        known: of its operands.
        node: of any number of results.
        attributes: its own, by name.
    """
    if node.op_type == "Cast":
        return known.tensor(node.input[0]) if attributes["to"] in _INTEGERS else None
    if node.op_type not in MOVING or len(node.output) != 1:
        return None
    count = len(node.input) if node.op_type == "Concat" else 1
    operands = [known.tensor(name) for name in node.input[:count]]
    tensors = [tensor for tensor in operands if tensor is not None]
    others = [known.tensor(name) if name else None for name in node.input[count:]]
    arrays = [None if other is None else other.integers() for other in others]
    is_open = any(bool(name) and array is None for name, array in zip(node.input[count:], arrays, strict=True))
    if is_open or not tensors or len(tensors) < count:
        return None
    elements = tuple(element for tensor in tensors for element in tensor.elements)
    places = np.split(np.arange(len(elements)), np.cumsum([len(tensor.elements) for tensor in tensors])[:-1])
    shaped = [part.reshape(tensor.shape) for part, tensor in zip(places, tensors, strict=True)]
    made = compute(node.op_type, [*shaped, *arrays], attributes)
    if made is None or made[0].size > MOST_ELEMENTS:
        return None
    return SmallTensor(tuple(elements[place] for place in made[0].reshape(-1)), made[0].shape)
