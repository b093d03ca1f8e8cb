"""Nodes that compute sizes of the inputs of a graph."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from sift_onnx.backends.lowering.dims import Dim, Dims, added
from sift_onnx.backends.lowering.names import made_name

__all__ = ["Places", "follows_from", "nodes_of_sizes"]

# Where an input of the graph has a size: its name, and the axis.
Places = Mapping[Dim, tuple[str, int]]
_OPERATORS = {
    "sum": "Add", "product": "Mul", "cut": "Min", "smaller": "Min", "larger": "Max", "quotient": "Div",
    "truncated": "Div", "remainder": "Mod",
}  # fmt: skip
# The first version in which Min and Max are of integers.
_OPSET_OF_MIN = 12
_SINCE = dict.fromkeys(("cut", "smaller", "larger", "window"), _OPSET_OF_MIN)


def follows_from(places: Places, size: Dim, opset: int) -> bool:
    """Whether a size is a number, one of ``places``, or what nodes of an opset make of such.

    These are sums, products, quotients, sizes of axes that are cut at one end, and windows of axes.
    """
    if isinstance(size, int) or size in places:
        return True
    match size:
        case ("window", base, int(), int(), 0):
            return opset >= _OPSET_OF_MIN and follows_from(places, base, opset)
        case (str(kind), *parts) if kind in _OPERATORS and opset >= _SINCE.get(kind, 0):
            return all(follows_from(places, part, opset) for part in parts)
    return False


def nodes_of_sizes(output: str, sizes: Dims, places: Places, is_number: bool = False) -> list[onnx.NodeProto]:
    """Nodes that make a tensor of ``sizes``, which follow from ``places``.

    Args:
        output: name of the tensor.
        sizes: its elements.
        places: of sizes of the graph's inputs.
        is_number: whether it has no axis.
    """
    nodes: list[onnx.NodeProto] = []

    def made(size: Dim, name: str) -> str:
        """The name of a tensor of one size."""
        if isinstance(size, tuple) and size not in places:
            kind, *parts = size
            if kind == "window":  # none, where the axis is too short
                base, stride, room, _ = parts
                assert isinstance(stride, int) and isinstance(room, int)
                kind, parts = "larger", [0, added([base, room, stride])]
                if stride > 1:
                    kind, parts = "quotient", [("larger", *parts), stride]
            result, *others = (made(part, made_name(name, str(number))) for number, part in enumerate(parts))
            for number, other in enumerate(others):
                own = made_name(name, f"{kind} {number}")
                nodes.append(onnx.helper.make_node(_OPERATORS[str(kind)], [result, other], [own]))
                result = own
            return result
        number, axis = (size, "") if isinstance(size, int) else (places[size][1], made_name("", "axis"))
        value = onnx.numpy_helper.from_array(np.array([number], np.int64))
        nodes.append(onnx.helper.make_node("Constant", [], [f"{name}{axis}"], value=value))
        if not axis:
            return name
        nodes.append(onnx.helper.make_node("Shape", [places[size][0]], [made_name(name, "shape")]))
        nodes.append(onnx.helper.make_node("Gather", [made_name(name, "shape"), made_name(name, "axis")], [name]))
        return name

    parts = [made(size, made_name(output, str(number))) for number, size in enumerate(sizes)]
    if is_number:
        return [*nodes, onnx.helper.make_node("Squeeze", parts, [output])]
    return [*nodes, onnx.helper.make_node("Concat", parts, [output], axis=0)]
