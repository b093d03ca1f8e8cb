"""QuantizeLinear, DequantizeLinear, and onnxruntime's operators whose operands are quantized (its QOperator format)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.lowering.byte_functions import function_values
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.matching.byte_chains import ByteFunction, values_made
from sift_onnx.backends.lowering.quantization import HIGHEST, Quantization
from sift_onnx.backends.lowering.rules.pooling import pool
from sift_onnx.backends.lowering.rules.quantized_layers import conv_spec, matmul_spec, quantization_at
from sift_onnx.backends.lowering.rules.resize import padded_images
from sift_onnx.backends.lowering.rules.step import QUANTIZED, NodeView, NotLowered, Step, View
from sift_onnx.backends.lowering.rules.stored_integers import Integers
from sift_onnx.backends.lowering.specs import (
    Activation,
    ByteTable,
    ChannelCombine,
    Dequantize,
    Elementwise,
    Joined,
    PixelCopy,
    Pool,
    Quantize,
    QuantizedAdd,
    QuantizedAverage,
    QuantizedMean,
    Spec,
)

__all__ = [
    "byte_function",
    "clipped_bytes",
    "dequantize",
    "padded_bytes",
    "quantize",
    "quantized_activation",
    "quantized_add",
    "quantized_average",
    "quantized_concat",
    "quantized_convolution",
    "quantized_gemm",
    "quantized_matmul",
    "quantized_mean",
    "quantized_product",
]


def quantize(node: NodeView) -> Step:
    """Floats to bytes, with one scale for all."""
    view = node.operand(0)
    step = node.step(Quantize(_quantization(node, 1, 2, of=node.proto.output[0])), view)
    return replace(step, result_dtype=DType.UINT8)


def dequantize(node: NodeView) -> Step:
    """Bytes to floats, with one scale for all."""
    view = node.bytes_view(node.input(0))
    x = _quantization(node, 1, 2, of=node.proto.input[0])
    return replace(node.step(Dequantize(x), view), dtype=DType.UINT8)


def quantized_convolution(node: NodeView) -> Step:
    """QLinearConv."""
    x, y = _quantization(node, 1, 2), _quantization(node, 6, 7)
    view = node.bytes_view(node.input(0), "image")
    spec = conv_spec(node, _integers(node, 3), x, node.dims(0)[1])
    return _of_bytes(node, replace(spec, y=y, bias=_bias(node, 8, spec.weights.rows)), view)


def quantized_matmul(node: NodeView) -> Step:
    """QLinearMatMul with a constant matrix."""
    x, y = _quantization(node, 1, 2), _quantization(node, 6, 7)
    view = node.bytes_view(node.input(0), "rows")
    spec = matmul_spec(node, _integers(node, 3), x, node.dims(0)[-1], transposed=True)
    return _of_bytes(node, replace(spec, y=y), view)


def quantized_gemm(node: NodeView) -> Step:
    """QGemm, whose result is floats where it says no scale of them."""
    x = _quantization(node, 1, 2)
    if node.attribute("transA", 0) or node.attribute("alpha", 1.0) != 1:
        raise NotLowered("its first operand is transposed, or it has a factor: alpha")
    view = node.bytes_view(node.input(0), "rows")
    transposed = not node.attribute("transB", 0)
    spec = matmul_spec(node, _integers(node, 3), x, node.dims(0)[-1], transposed)
    spec = replace(spec, bias=_bias(node, 6, spec.weights.rows))
    if not node.input(7):
        return replace(node.step(spec, view), dtype=DType.UINT8)
    return _of_bytes(node, replace(spec, y=_quantization(node, 7, 8)), view)


def quantized_add(node: NodeView) -> Step:
    """QLinearAdd of two tensors of one shape."""
    a, b, y = (_quantization(node, first, first + 1) for first in (1, 4, 6))
    return _of_two(node, QuantizedAdd(a, b, y), (0, 3))


def quantized_product(node: NodeView) -> tuple[Step, ...]:
    """QLinearMul, in floats: fused where both operands are functions of the same bytes.

    One of them may have a value for each channel, as gates of squeeze and excitation have.
    """
    a, b, y = (_quantization(node, first, first + 1) for first in (1, 4, 6))
    gates = [other for image, other in ((0, 3), (3, 0)) if _has_value_per_channel(node, other, image)]
    if gates:
        view = _image_of_two(node)
        spec: Spec = ChannelCombine("multiply")
        operands = [(a, node.input(0)), (b, node.input(3))][:: -1 if gates == [0] else 1]
    else:
        whole = _of_two(node, QuantizedAdd(a, b, y), (0, 3))
        view, spec = whole.view, Elementwise("multiply")
        operands = list(zip((a, b), whole.inputs, strict=True))
    names = [node.between(part) for part in ("a", "b", "product")]
    steps = [
        Step(Dequantize(x), (name,), made, view, view, (node.index,), dtype=DType.UINT8)
        for (x, name), made in zip(operands, names, strict=False)
    ]
    product = Step(spec, tuple(names[:2]), names[2], view, view, (node.index,))
    last = Step(Quantize(y), (names[2],), node.output, view, view, (node.index,), result_dtype=DType.UINT8)
    return (*steps, product, last)


def quantized_mean(node: NodeView) -> Step:
    """QLinearGlobalAveragePool."""
    if node.attribute("channels_last", 0):
        raise NotLowered("its channels are last")
    view = node.bytes_view(node.input(0), "image")
    return _of_bytes(node, QuantizedMean(_quantization(node, 1, 2), _quantization(node, 3, 4)), view)


def quantized_average(node: NodeView) -> Step:
    """QLinearAveragePool."""
    if node.attribute("channels_last", 0):
        raise NotLowered("its channels are last")
    spec = pool(replace(node, types=QUANTIZED)).spec
    assert isinstance(spec, Pool)
    whole = QuantizedAverage(spec, _quantization(node, 1, 2), _quantization(node, 3, 4))
    return _of_bytes(node, whole, "image")


def byte_function(node: NodeView, found: ByteFunction) -> Step:
    """A function of bytes that was found in several nodes, of which ``node`` quantizes the result."""
    graph = node.graph
    operand = found.dequantizer.input[0]
    x = quantization_at(graph, found.dequantizer, 1, 2, of=operand)
    y = _quantization(node, 1, 2, of=node.output)
    values = values_made(graph, found, x.values())
    if values is None:
        raise NotLowered("no table of the function before it: its values are not finite, or not known")
    view = node.bytes_view(operand)
    return Step(ByteTable(y.bytes_of(values)), (operand,), node.output, view, view, found.nodes, dtype=DType.UINT8,
                result_dtype=DType.UINT8)  # fmt: skip


def clipped_bytes(node: NodeView) -> Step:
    """Clip of bytes, by which torch keeps quantized values within 7 bits: a table that joins what makes them."""
    shift = _shift_of(node)
    ends = [0, HIGHEST]
    for end in range(2):
        if not node.input(1 + end):
            continue
        bound = node.array(1 + end)
        if bound is None or bound.size != 1:
            raise NotLowered("its bounds are computed during the run")
        ends[end] = int(bound.reshape(-1)[0]) + shift
    low, high = ends
    table = ByteTable(np.arange(HIGHEST + 1).clip(low, high).astype(np.uint8))
    return _of_bytes(node, table, node.bytes_view(node.input(0)))


def padded_bytes(node: NodeView) -> Step:
    """Pad of images of bytes, with a byte."""
    step = padded_images(replace(node, types=QUANTIZED))
    if isinstance(step.spec, PixelCopy):
        step = replace(step, spec=replace(step.spec, fill=step.spec.fill + _shift_of(node)))
    return replace(step, dtype=DType.UINT8, result_dtype=DType.UINT8)


def _shift_of(node: NodeView) -> int:
    """What the kernels' bytes are above those of the operand."""
    return -int(np.iinfo(onnx.helper.tensor_dtype_to_np_dtype(node.graph.elem_type(node.proto.input[0]))).min)


def quantized_activation(node: NodeView) -> Step:
    """QLinearSigmoid and QLinearLeakyRelu: a table of 256 bytes."""
    x, y = _quantization(node, 1, 2), _quantization(node, 3, 4)
    function: Activation = ("sigmoid", 0.0, 0.0)
    if node.op == "QLinearLeakyRelu":
        function = ("leaky", float(node.attribute("alpha", 0.01)), 0.0)
    table = ByteTable(y.bytes_of(function_values(function, x.values())))
    return _of_bytes(node, table, node.bytes_view(node.input(0)))


def quantized_concat(node: NodeView) -> tuple[Step, ...]:
    """QLinearConcat. An operand whose scale is not the result's is requantized first."""
    y = _quantization(node, 0, 1)
    positions = range(2, len(node.proto.input), 3)
    names = [node.input(position) for position in positions]
    dims = [node.dims(position) for position in positions]
    axis = int(node.attribute("axis")) % len(dims[0])
    sizes = [own[axis] for own in dims]
    counts = [size for size in sizes if isinstance(size, int)]
    if len(counts) != len(sizes):
        raise NotLowered("the sizes that it joins are not known")
    view = node.bytes_view(names[0])
    steps: list[Step] = []
    operands: list[str] = []
    for position, name in zip(positions, names, strict=True):
        x = _quantization(node, position + 1, position + 2)
        node.bytes_view(name, view)
        table = ByteTable(y.bytes_of(x.values()))
        if not table.is_identity:
            made = node.between(f"operand {len(operands)}")
            steps.append(Step(table, (name,), made, view, view, (node.index,), dtype=DType.UINT8,
                              result_dtype=DType.UINT8))  # fmt: skip
            name = made
        operands.append(name)
    starts = tuple(int(start) for start in np.cumsum([0, *counts[:-1]]))
    joined = Joined(axis, starts, sum(counts))
    last = Step(joined, tuple(operands), node.output, view, view, (node.index,), dtype=DType.UINT8,
                result_dtype=DType.UINT8)  # fmt: skip
    return (*steps, last)


def _quantization(node: NodeView, scale: int, zero: int, of: str = "") -> Quantization:
    return quantization_at(node.graph, node.proto, scale, zero, of)


def _of_bytes(node: NodeView, spec: Spec, view: View) -> Step:
    return replace(node.step(spec, view), dtype=DType.UINT8, result_dtype=DType.UINT8)


def _has_value_per_channel(node: NodeView, position: int, image: int) -> bool:
    """Whether an operand has one position of each image of the other one, and neither is a constant."""
    if node.constant(position) is not None or node.constant(image) is not None:
        return False
    dims, whole = node.dims(position), node.dims(image)
    return len(whole) == 4 and dims != whole and dims == (*whole[:2], 1, 1)


def _image_of_two(node: NodeView) -> View:
    node.bytes_view(node.input(3), "image")
    return node.bytes_view(node.input(0), "image")


def _of_two(node: NodeView, spec: Spec, positions: tuple[int, int]) -> Step:
    if any(node.constant(position) is not None for position in positions):
        raise NotLowered("an operand is a constant")
    if node.dims(positions[0]) != node.dims(positions[1]):
        raise NotLowered("its operands are not known to be of one shape")
    known = [node.views.get(node.input(position)) for position in positions]
    view = node.bytes_view(node.input(positions[0]), known[0] or known[1])
    node.bytes_view(node.input(positions[1]), view)
    return replace(node.step(spec, view, operands=positions), dtype=DType.UINT8, result_dtype=DType.UINT8)


def _integers(node: NodeView, position: int) -> Integers:
    """Constant weights at this input; their scale and zero point are the next two."""
    graph, names = node.graph, [node.input(position + place) for place in range(3)]
    if names[0] in graph.derived:
        graph.fold(names[0])
    constant = node.constant(position)
    if constant is None:
        raise NotLowered(f"the weights {names[0]!r} are {node.why_not_constant(position)}")
    scale = graph.folded_values(names[1])
    zero = graph.folded_values(names[2]) if names[2] else np.zeros(1, np.int16)
    if scale is None or zero is None or scale.dtype != np.float32 or not np.isfinite(scale).all():
        raise NotLowered("scale or zero point of its weights are no finite constants")
    if scale.ndim > 1:
        raise NotLowered("its weights have a scale for each row of a batch")
    return Integers(constant, np.asarray(scale).reshape(-1), zero.astype(np.int16).reshape(-1))


def _bias(node: NodeView, position: int, rows: int) -> npt.NDArray[np.int32] | None:
    if not node.input(position):
        return None
    values: npt.NDArray[Any] | None = node.array(position)
    if values is None or values.dtype != np.int32 or values.size != rows:
        raise NotLowered(f"the bias {node.input(position)!r} is not one int32 for each channel")
    return np.array(values.reshape(-1), np.int32)
