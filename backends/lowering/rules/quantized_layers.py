"""Conv, MatMul and Gemm whose operands are read through DequantizeLinear, as quantizers write them (QDQ)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.folding import dequantized
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.matching.integer_layers import IntegerMatch
from sift_onnx.backends.lowering.quantization import IntegerMatrix, Quantization
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step, View, dims_of
from sift_onnx.backends.lowering.rules.window import window_of
from sift_onnx.backends.lowering.specs import QuantizedConv, QuantizedMatmul
from sift_onnx.backends.lowering.weights import Floats

__all__ = [
    "Integers",
    "channel_vector",
    "check_integers",
    "conv_spec",
    "dequantized_layer",
    "fold_dequantized",
    "integer_layer",
    "matmul_spec",
    "quantization_at",
]

_INTEGERS = (np.int8, np.uint8)
# Dequantized constants up to this many elements are made here; larger ones are left to onnxruntime.
_MOST_FOLDED = 1 << 22
# Of bias and scale that are one in exact arithmetic: a product of two float32.
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Integers:
    """Constant integers and what they stand for.

    Attributes:
        constant: of the model.
        scale: [1], or one for each output channel.
        zero: likewise.
    """

    constant: gs.Constant
    scale: Floats
    zero: npt.NDArray[np.int16]


def dequantized_layer(node: NodeView) -> Step | None:
    """The step of a layer that multiplies dequantized activations by dequantized constants; None for any other node.

    It reads the bytes, and makes floats: what quantizes them again is fused with it.
    """
    if not is_standard_op(node.proto, "Conv", "MatMul", "Gemm"):
        return None
    read = _dequantizer(node.graph, node.input(0), is_constant=False)
    if read is None or _dequantizer(node.graph, node.input(1), is_constant=True) is None:
        return None
    x = quantization_at(node.graph, read, 1, 2, of=read.input[0])
    return _convolution(node, read.input[0], x) if node.op == "Conv" else _product(node, read.input[0], x)


def _convolution(node: NodeView, operand: str, x: Quantization) -> Step:
    weights = _weights(node, 0)
    spec = conv_spec(node, weights, x, node.dims(0)[1])
    bias, shift = _bias(node, spec.scale, spec.weights.rows)
    spec = QuantizedConv(spec.weights, spec.scale, x.zero, bias, shift, geometry=spec.geometry, groups=spec.groups)
    return _reading(node, operand, spec)


def _product(node: NodeView, operand: str, x: Quantization) -> Step:
    if node.op == "Gemm" and (
        node.attribute("transA", 0) or node.attribute("alpha", 1.0) != 1 or node.attribute("beta", 1.0) != 1
    ):
        raise NotLowered("its first operand is transposed, or it has factors: alpha, beta")
    transposed = node.op == "MatMul" or not node.attribute("transB", 0)
    weights = _weights(node, 1 if transposed else 0)
    spec = matmul_spec(node, weights, x, node.dims(0)[-1], transposed)
    bias, shift = _bias(node, spec.scale, spec.weights.rows)
    return _reading(node, operand, QuantizedMatmul(spec.weights, spec.scale, x.zero, bias, shift))


def fold_dequantized(node: NodeView) -> None:
    """Make constants of dequantized constants that the node reads, but for weights that kernels take as integers."""
    graph = node.graph
    names = list(node.proto.input)
    if is_standard_op(node.proto, "Conv", "ConvTranspose", "Gemm", "MatMul"):
        if node.op != "ConvTranspose" and _dequantizer(graph, node.input(0), is_constant=False) is not None:
            return
        # Products of floats take integers as they are.
        names = names[1:] if "Conv" in node.op else names[2:]
    for name in names:
        reader = _dequantizer(graph, name, is_constant=True)
        if reader is None or name in graph.constants:
            continue
        stored, scale, zero = (graph.values_of(part) if part else None for part in (*reader.input, "")[:3])
        if stored is None or scale is None or stored.size > _MOST_FOLDED or (reader.input[2:] and zero is None):
            continue
        values = dequantized(reader, stored, scale, zero)
        if values is None:
            continue
        graph.constants[name] = gs.Constant(name, np.ascontiguousarray(values))


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
    values = [graph.values_of(name) if name else None for name in names]
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


def _dequantizer(graph: GraphView, name: str, is_constant: bool) -> onnx.NodeProto | None:
    index = graph.producers.get(name)
    if index is None or not is_standard_op(graph.nodes[index], "DequantizeLinear"):
        return None
    node = graph.nodes[index]
    return node if _is_constant(graph, node.input[0]) == is_constant else None


def _is_constant(graph: GraphView, name: str) -> bool:
    """Whether integers are a constant, or quantized from one, as after quantization-aware training."""
    index = graph.producers.get(name)
    if name in graph.constants or index is None or not is_standard_op(graph.nodes[index], "QuantizeLinear"):
        return name in graph.constants
    return graph.nodes[index].input[0] in graph.constants and graph.fold(name)


def _weights(node: NodeView, axis: int) -> Integers:
    """The integers behind the second input, whose scales, if there are several, lie along ``axis``."""
    graph = node.graph
    reader = _dequantizer(graph, node.input(1), is_constant=True)
    assert reader is not None  # dequantized_layer() has looked
    values = [graph.values_of(name) if name else None for name in (*reader.input[1:], "")[:2]]
    scale = values[0]
    if scale is None or scale.dtype != np.float32 or not np.isfinite(scale).all():
        raise NotLowered("the scale of its weights is no constant of finite float32")
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in reader.attribute}
    constant = graph.constants[reader.input[0]]
    own = int(attributes.get("axis", 1)) % max(len(constant.shape), 1)
    if attributes.get("block_size", 0) or (scale.size > 1 and (own != axis or scale.ndim != 1)):
        raise NotLowered("its weights have a scale for each block or input channel; the kernels add them up first")
    zero = np.zeros(1, np.int16) if values[1] is None else values[1].astype(np.int16).reshape(-1)
    return Integers(constant, np.asarray(scale, np.float32).reshape(-1), zero)


def _bias(node: NodeView, scale: Floats, rows: int) -> tuple[npt.NDArray[np.int32] | None, Floats | None]:
    """The bias in units of a sum, or else as floats."""
    name = node.input(2)
    if not name:
        return None, None
    reader = _dequantizer(node.graph, name, is_constant=True)
    if reader is None:
        return None, node.float_vector(2, rows, "the bias")
    values, factor = (node.graph.values_of(part) for part in reader.input[:2])
    zero = node.graph.values_of(reader.input[2]) if len(reader.input) > 2 and reader.input[2] else np.zeros(1)
    if values is None or factor is None or zero is None or values.size != rows or factor.size not in (1, rows):
        raise NotLowered(f"the bias {name!r} is not one constant for each channel")
    if values.dtype == np.int32 and not np.any(zero) and np.allclose(factor.reshape(-1), scale, _TOLERANCE, 0):
        return np.array(values.reshape(-1), np.int32), None
    if zero.size not in (1, rows):
        raise NotLowered(f"the bias {name!r} is not one constant for each channel")
    stored, point, scales = (part.reshape(-1).astype(np.float64) for part in (values, zero, factor))
    return None, np.asarray((stored - point) * scales, np.float32)
