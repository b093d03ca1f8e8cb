"""Conv, MatMul and Gemm whose operands are read through DequantizeLinear, as quantizers write them (QDQ)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.matching.integer_layers import IntegerMatch
from sift_onnx.backends.lowering.quantization import IntegerMatrix, Quantization
from sift_onnx.backends.lowering.rules.flat_images import FlatImages
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step, View, dims_of
from sift_onnx.backends.lowering.rules.stored_integers import (
    Integers,
    dequantized_bias,
    dequantizer_of,
    has_dequantized_weights,
    weights_of,
)
from sift_onnx.backends.lowering.rules.window import window_of
from sift_onnx.backends.lowering.specs import QuantizedConv, QuantizedMatmul
from sift_onnx.backends.lowering.weights import Floats

__all__ = [
    "channel_vector",
    "check_integers",
    "conv_spec",
    "convolution_of_bytes",
    "dequantized_layer",
    "dequantized_operand",
    "integer_layer",
    "matmul_spec",
    "quantization_at",
]

_INTEGERS = (np.int8, np.uint8)


def dequantized_layer(node: NodeView) -> Step | None:
    """The step of a layer that multiplies dequantized activations by dequantized constants; None for any other node.

    It reads the bytes, and makes floats: what quantizes them again is fused with it.
    """
    found = dequantized_operand(node)
    if found is None:
        return None
    operand, x = found
    return convolution_of_bytes(node, operand, x) if node.op == "Conv" else _product(node, operand, x)


def dequantized_operand(node: NodeView) -> tuple[str, Quantization] | None:
    """What a layer multiplies dequantized constants by: bytes, and what they stand for; None for any other node."""
    if not is_standard_op(node.proto, "Conv", "MatMul", "Gemm"):
        return None
    read = dequantizer_of(node.graph, node.input(0))
    if read is None or not has_dequantized_weights(node):
        return None
    return read.input[0], quantization_at(node.graph, read, 1, 2, of=read.input[0])


def convolution_of_bytes(node: NodeView, operand: str, x: Quantization) -> Step:
    """The step of a Conv of dequantized weights, which reads ``operand``, the bytes that ``x`` tells of."""
    weights = weights_of(node, 0)
    spec = conv_spec(node, weights, x, node.dims(0)[1])
    bias, shift = dequantized_bias(node, spec.scale, spec.weights.rows)
    spec = QuantizedConv(spec.weights, spec.scale, x.zero, bias, shift, geometry=spec.geometry, groups=spec.groups)
    return _reading(node, operand, spec)


def _product(node: NodeView, operand: str, x: Quantization) -> Step:
    if node.op == "Gemm" and (
        node.attribute("transA", 0) or node.attribute("alpha", 1.0) != 1 or node.attribute("beta", 1.0) != 1
    ):
        raise NotLowered("its first operand is transposed, or it has factors: alpha, beta")
    transposed = node.op == "MatMul" or not node.attribute("transB", 0)
    weights = weights_of(node, 1 if transposed else 0)
    spec = matmul_spec(node, weights, x, node.dims(0)[-1], transposed)
    bias, shift = dequantized_bias(node, spec.scale, spec.weights.rows)
    return _reading(node, operand, QuantizedMatmul(spec.weights, spec.scale, x.zero, bias, shift))


def integer_layer(node: NodeView, found: IntegerMatch) -> Step:
    """The step of a layer that was found in several nodes, of which ``node`` is the one that multiplies."""
    integers = Integers(node.graph.constants[found.weight], found.scale, found.weight_zero)
    x_zero: int | None = None
    if found.x_zero is not None:
        # The scale is that of sums already.
        x_zero = _quantization_of(np.ones(1, np.float32), found.x_zero).zero
    unit = Quantization(1.0, x_zero or 0)
    is_conv = "Conv" in node.op
    dims = dims_of(node.graph, found.operand, node.known_dims)
    view: View = "image" if is_conv else "rows"
    view = node.bytes_view(found.operand, view) if not found.is_dynamic else node.floats_view(found.operand, view)
    if is_conv:
        spec: QuantizedMatmul = conv_spec(node, integers, unit, dims[1])
    else:
        spec = matmul_spec(node, integers, unit, dims[-1], transposed=True)
    rows = spec.weights.rows
    bias = None if found.bias is None else np.array(np.broadcast_to(found.bias, (rows,)), np.int32)
    shift = None if found.shift is None else channel_vector(found.shift, rows)
    spec = replace(spec, x_zero=x_zero, bias=bias, shift=shift, is_divided=True)
    output = node.graph.nodes[found.nodes[-1]].output[0]
    nodes = (found.layer, *(index for index in found.nodes if index != found.layer))
    dtype = DType.FLOAT32 if found.is_dynamic else DType.UINT8
    return Step(spec, (found.operand,), output, view, view, nodes, dtype=dtype)


def _reading(node: NodeView, operand: str, spec: QuantizedMatmul) -> Step:
    view = node.bytes_view(operand, "image" if isinstance(spec, QuantizedConv) else "rows")
    return Step(spec, (operand,), node.output, view, view, (node.index,), dtype=DType.UINT8)


def conv_spec(node: NodeView, integers: Integers, x: Quantization, channels: object) -> QuantizedConv:
    """A convolution of bytes with these weights, [rows][channels of a group][height][width], without bias.

    Raises:
        NotLowered: the kernels have none for these sizes; the message says why.
    """
    shape = tuple(int(n) for n in integers.constant.shape)
    if len(shape) == 3 and isinstance(node, FlatImages):
        shape = (*shape[:2], 1, shape[2])
    if len(shape) != 4:
        raise NotLowered(f"a convolution over {len(shape) - 2} axes; the kernels are two-dimensional")
    rows, group_channels, height, width = shape
    groups = int(node.attribute("group", 1))
    if channels != group_channels * groups or not rows or rows % groups:
        raise NotLowered(f"weights of {list(shape)} in {groups} groups, for {channels} channels")
    scale = channel_vector(integers.scale, rows)
    weights = IntegerMatrix(integers.constant, rows, group_channels, height * width, integers.zero)
    check_integers(node, weights)
    geometry = window_of(node, (height, width))
    return QuantizedConv(weights, scale * np.float32(x.scale), x.zero, geometry=geometry, groups=groups)


def matmul_spec(
    node: NodeView, integers: Integers, x: Quantization, columns: object, transposed: bool
) -> QuantizedMatmul:
    """A product of bytes with these weights; ``transposed`` are [columns][rows].

    Raises:
        NotLowered: the kernels have none for these sizes; the message says why.
    """
    shape = tuple(int(n) for n in integers.constant.shape)
    if len(shape) != 2 or 0 in shape:
        raise NotLowered(f"the weights {integers.constant.name!r} are no matrix, but {list(shape)}")
    inputs, rows = shape if transposed else shape[::-1]
    if inputs != columns:
        raise NotLowered(f"the operand's last axis is {columns}, the matrix takes {inputs}")
    weights = IntegerMatrix(integers.constant, rows, inputs, 1, integers.zero, transposed)
    check_integers(node, weights)
    return QuantizedMatmul(weights, channel_vector(integers.scale, rows) * np.float32(x.scale), x.zero)


def channel_vector(values: npt.NDArray[Any], rows: int) -> Floats:
    """One value for each of ``rows`` channels.

    Raises:
        NotLowered: there are neither one nor as many.
    """
    if values.size not in (1, rows):
        raise NotLowered(f"{values.size} scales for {rows} output channels")
    return np.array(np.broadcast_to(values.reshape(-1), (rows,)), np.float32)


def check_integers(node: NodeView, weights: IntegerMatrix) -> None:
    """Leave weights to onnxruntime that the kernels cannot have.

    Raises:
        NotLowered: they are of another type, or have zero points that do not fit.
    """
    stored = np.dtype(weights.constant.dtype)
    if stored not in _INTEGERS:
        raise NotLowered(f"the weights {weights.name!r} are {stored}; the integer kernels are for int8 and uint8")
    if weights.zero.size not in (1, weights.rows):
        raise NotLowered(f"the weights {weights.name!r} have {weights.zero.size} zero points")


def quantization_at(graph: GraphView, node: onnx.NodeProto, scale: int, zero: int, of: str = "") -> Quantization:
    """What a node says of a tensor of activations, by the positions of its inputs.

    Without a zero point, it is 0 of the type of the value ``of``.

    Raises:
        NotLowered: scale or zero point are no constants, or not those of a whole tensor of bytes.
    """
    names = [node.input[i] if i < len(node.input) else "" for i in (scale, zero)]
    values = [graph.folded_values(name) if name else None for name in names]
    if values[0] is None or (names[1] and values[1] is None):
        raise NotLowered("its scale or zero point is computed during the run")
    stored = values[1]
    if stored is None and of and graph.elem_type(of) != DType.UINT8.onnx_type:
        stored = np.zeros((), onnx.helper.tensor_dtype_to_np_dtype(graph.elem_type(of)))
    return _quantization_of(values[0], stored)


def _quantization_of(scale: npt.NDArray[Any], zero: npt.NDArray[Any] | None) -> Quantization:
    try:
        return Quantization.of(scale, zero)
    except ValueError as error:
        raise NotLowered(f"{error}; the kernels have one float32 scale, and a zero point of a byte") from error
