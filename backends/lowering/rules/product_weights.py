"""The constant behind a matrix product's weights, and how a model stores them in fewer bits than they have there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.graph import is_standard_op
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered
from sift_onnx.backends.lowering.weights import Floats, ValueType, WeightMatrix
from sift_onnx.graphs.constants import stored_values_of

__all__ = ["weight_matrix"]

_HALVES: dict[str, ValueType] = {"float16": "float16", "bfloat16": "bfloat16"}
# Zero points with which all integers of a type are weights of int8.
_ZERO_POINTS = {"int8": 0, "uint8": 128}
# Columns of a group of scales are a multiple of these.
_GROUP_MULTIPLE = 16


def weight_matrix(node: NodeView, transposed: bool) -> WeightMatrix:
    """The weights that the second input of a product is: a constant, or what nodes make of one.

    These may transpose it, cast it from float16 or bfloat16, and dequantize it from int8 or uint8. What others make of
    constants is computed here, if it is not large.

    Args:
        node: the product.
        transposed: whether the input is [columns, rows].

    Raises:
        NotLowered: it is no such matrix.
    """
    graph, name, of_input = node.graph, node.input(1), transposed
    cast = False
    quantized: tuple[onnx.NodeProto, bool] | None = None
    while name not in graph.constants:
        if quantized is not None and name in graph.derived and graph.fold(name):
            break  # floats that the graph quantizes
        producer = graph.producers.get(name)
        maker = None if producer is None else graph.nodes[producer]
        if maker is None or name in graph.outputs:
            break
        if is_standard_op(maker, "Transpose") and _is_turn(maker):
            transposed = not transposed
        elif is_standard_op(maker, "Cast") and not cast and quantized is None and _casts_to_float(maker):
            cast = True
        elif is_standard_op(maker, "DequantizeLinear") and not cast and quantized is None:
            quantized = maker, transposed
        else:
            break
        name = maker.input[0]
    if name not in graph.constants and node.input(1) in graph.derived and graph.fold(node.input(1)):
        return weight_matrix(node, of_input)
    constant = graph.constants.get(name)
    if constant is None:
        raise NotLowered(f"the second operand {node.input(1)!r} is {node.why_not_constant(1)}")
    shape = tuple(int(n) for n in constant.shape)
    if len(shape) != 2 or 0 in shape:
        raise NotLowered(f"the second operand {node.input(1)!r} is no matrix, but {list(shape)}")
    columns, rows = shape if transposed else shape[::-1]
    stored = np.dtype(constant.dtype).name
    if quantized is not None:
        return _dequantized(node, quantized, constant, (rows, columns), transposed)
    if cast and stored not in _HALVES:
        raise NotLowered(f"the weights {constant.name!r} are {stored}, and are cast; the kernels take 16-bit floats")
    if not cast:
        return WeightMatrix(constant, rows, columns, transposed)
    return WeightMatrix(constant, rows, columns, transposed, values=_HALVES[stored], is_stored=True)


def _is_turn(node: onnx.NodeProto) -> bool:
    orders = [list(a.ints) for a in node.attribute if a.name == "perm"] or [[1, 0]]
    return orders == [[1, 0]]


def _casts_to_float(node: onnx.NodeProto) -> bool:
    return any(a.name == "to" and a.i == onnx.TensorProto.FLOAT for a in node.attribute)


def _dequantized(
    node: NodeView,
    quantized: tuple[onnx.NodeProto, bool],
    constant: gs.Constant,
    sizes: tuple[int, int],
    transposed: bool,
) -> WeightMatrix:
    """Weights that are integers and scales; the flag of ``quantized`` is whether *its* result is [columns, rows]."""
    maker, is_turned = quantized
    rows, columns = sizes
    name, stored = str(constant.name), np.dtype(constant.dtype).name
    if stored not in _ZERO_POINTS:
        raise NotLowered(f"the quantized weights {name!r} are {stored}; the kernels take int8 and uint8")
    names = [*maker.input, "", ""]
    fed = node.graph.producers.get(node.input(0))
    if fed is not None and is_standard_op(node.graph.nodes[fed], "DequantizeLinear"):
        raise NotLowered("its operand is quantized too; the kernels take float operands for quantized weights")
    scales, zeros = node.graph.folded_values(names[1]), node.graph.folded_values(names[2]) if names[2] else None
    if scales is None or (names[2] and zeros is None):
        raise NotLowered(f"scales or zero points of the weights {name!r} are no constants")
    if scales.dtype != np.float32 or not np.isfinite(scales).all():
        raise NotLowered(f"the scales of the weights {name!r} are {scales.dtype}, or not finite; kernels take float32")
    zero_point = _ZERO_POINTS[stored]
    if np.any((0 if zeros is None else zeros) != np.array(zero_point)):
        raise NotLowered(f"the zero points of the weights {name!r} are not {zero_point}, as the kernels have {stored}")
    if zero_point and stored_values_of(constant) is None:
        raise NotLowered(f"the weights {name!r} are stored sparse, and have a zero point")
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in maker.attribute}
    steps, group = _steps(scales, attributes, (rows, columns), is_turned, name)
    plain = WeightMatrix(constant, rows, columns, transposed, values="int8", is_stored=True)
    return replace(plain, steps=steps, group=group, zero_point=zero_point)


def _steps(
    scales: np.ndarray, attributes: dict[str, int], sizes: tuple[int, int], is_turned: bool, name: str
) -> tuple[Floats, int]:
    """The scales by row, or by row and group of columns, and how many columns a group has; 0 if all."""
    rows, columns = sizes
    axis = int(attributes.get("axis", 1)) % 2
    of_rows = axis == (1 if is_turned else 0)
    block = int(attributes.get("block_size", 0))
    if scales.size == 1:
        return np.full(rows, scales.reshape(()), np.float32), 0
    if not block:
        if not of_rows or scales.shape != (rows,):
            raise NotLowered(f"the weights {name!r} have scales along their inputs; the kernels take one per output")
        return np.ascontiguousarray(scales, np.float32), 0
    if of_rows or block % _GROUP_MULTIPLE:
        raise NotLowered(
            f"the weights {name!r} have scales for blocks of {block} along their {'outputs' if of_rows else 'inputs'}; "
            f"the kernels take multiples of {_GROUP_MULTIPLE} inputs"
        )
    by_row = scales.T if is_turned else scales
    if by_row.shape != (rows, -(-columns // block)):
        raise NotLowered(f"the scales of the weights {name!r} are {list(scales.shape)}, for blocks of {block}")
    return np.ascontiguousarray(by_row, np.float32), block if block < columns else 0
