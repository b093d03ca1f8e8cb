"""Steps of a region in plain numpy: what quantized specs mean, and as many others as small quantized nets have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from sift_onnx.backends.lowering.byte_functions import function_values
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.quantization import HIGHEST
from sift_onnx.backends.lowering.resampling import Sampling
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import (
    ByteTable,
    ChannelScale,
    Dequantize,
    DynamicQuantize,
    Elementwise,
    GlobalPool,
    Joined,
    LayerNormalization,
    PixelCopy,
    Pool,
    Quantize,
    QuantizedAdd,
    QuantizedConv,
    QuantizedMatmul,
    QuantizedMean,
    Reshaped,
    Sliced,
    result_dims,
)

Array = np.ndarray[Any, np.dtype[Any]]


def run_steps(steps: Sequence[Step], feeds: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
    """What steps make of floats. Bytes that come from outside, or leave, have to be uint8."""
    values: dict[str, Any] = dict(feeds)
    for step in steps:
        operands = [values[name] for name in step.inputs]
        made = _value(step, operands)
        if step.result_dtype is DType.UINT8 and not isinstance(made, tuple):
            assert made.dtype == np.uint8, step
        elif step.result_dtype is DType.FLOAT32:
            assert made.dtype == np.float32, step
        values[step.output] = made
    return {name: values[name] for name in outputs}


def _value(step: Step, operands: list[Any]) -> Any:
    spec, x = step.spec, operands[0]
    match spec:
        case Quantize():
            return spec.y.bytes_of(x)
        case Dequantize():
            return spec.x.values()[x]
        case ByteTable():
            return spec.values[x]
        case DynamicQuantize():
            return _dynamic(x)
        case QuantizedMatmul():
            made = _layer(spec, x, operands[1] if spec.is_added else np.float32(0))
            if spec.shifted is not None:
                shape = (-1, 1, 1) if step.view == "image" else (-1,)
                rests = spec.shifted.rests.reshape(shape)
                return np.clip(np.rint(made * spec.shifted.factor + rests), *spec.shifted.clamp).astype(np.uint8)
            return made if spec.added is None else _added(spec.added, made, operands[1])
        case QuantizedAdd():
            return _added(spec, x, operands[1])
        case QuantizedMean(x=of, y=y):
            mean = of.values()[x].mean(axis=(2, 3), dtype=np.float64, keepdims=spec.keep_axes)
            return y.bytes_of(mean.astype(np.float32))
        case Elementwise():
            made = x
            if spec.kind != "first":
                made = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}[spec.kind](x, operands[1])
            return function_values(spec.activation, made)
        case ChannelScale():
            shape = (-1, 1, 1) if step.view == "image" else (-1,)
            return function_values(spec.activation, x * spec.scale.reshape(shape) + spec.shift.reshape(shape))
        case Pool(kind="max"):
            geometry = spec.geometry
            window = {"kernel_shape": geometry.kernel, "strides": geometry.stride, "pads": geometry.pads}
            return _node("MaxPool", [x.astype(np.float32)], **window).astype(x.dtype)
        case GlobalPool(axes=axes):
            return x.mean(axis=axes, keepdims=spec.keep_axes, dtype=np.float64).astype(np.float32)
        case LayerNormalization():
            centred = x - x.mean(axis=-1, keepdims=True) if spec.is_centered else x
            variance = np.maximum(np.square(centred).mean(axis=-1, keepdims=True), spec.least)
            return (centred / np.sqrt(variance + spec.epsilon) * spec.scale + spec.shift).astype(np.float32)
        case Reshaped():
            return x.reshape(result_dims(spec, x.shape))
        case Sliced():
            for taken in spec.ranges:
                x = x.take(taken.places(x.shape[taken.axis]), axis=taken.axis)
            return x
        case Joined():
            order = np.argsort(spec.starts)
            return np.concatenate([operands[i] for i in order], axis=spec.axis)
        case PixelCopy(height=Sampling() as height, width=Sampling() as width):
            return x[:, :, height.sources(x.shape[2])][:, :, :, width.sources(x.shape[3])]
    raise AssertionError(f"no reference for {type(spec).__name__}")


def _added(spec: QuantizedAdd, own: Array, other: Array) -> Array:
    return np.clip(spec.y.bytes_of(spec.a.values()[own] + spec.b.values()[other]), *spec.clamp)


def _dynamic(x: Array) -> tuple[Array, np.float32, int]:
    """Bytes, scale and zero point, as DynamicQuantizeLinear makes them."""
    y, scale, zero = _node("DynamicQuantizeLinear", [x], outputs=3)
    return y, np.float32(scale), int(zero)


def _layer(spec: QuantizedMatmul, x: Any, added: Array | np.float32) -> Array:
    scale = spec.scale
    zero = spec.x_zero
    if zero is None:
        x, own, zero = x
        scale = scale * own
    weights = spec.weights.values().astype(np.float64)
    bias = np.zeros(spec.weights.rows) if spec.bias is None else spec.bias
    centred = x.astype(np.float64) - zero
    if isinstance(spec, QuantizedConv):
        kernel = weights.reshape(*weights.shape[:2], *spec.geometry.kernel)
        geometry = spec.geometry
        sums = _node("Conv", [centred, kernel], strides=geometry.stride, pads=geometry.pads,
                     dilations=geometry.dilation, group=spec.groups)  # fmt: skip
        shape: tuple[int, ...] = (-1, 1, 1)
    else:
        sums = centred @ weights[:, :, 0].T
        shape = (-1,)
    sums = (sums + bias.reshape(shape)).astype(np.float32)
    if spec.y is None:
        shift = np.float32(0) if spec.shift is None else spec.shift.reshape(shape)
        return function_values(spec.activation, sums * scale.reshape(shape) + shift + added)
    if spec.is_divided:
        scaled = sums * scale.reshape(shape) / np.float32(spec.y.scale)
    else:
        scaled = sums * (scale / np.float32(spec.y.scale)).reshape(shape)
    rounded = np.rint(scaled) + np.float32(spec.y.zero)
    return np.clip(np.clip(rounded, 0, HIGHEST), *spec.clamp).astype(np.uint8)


def _node(op: str, operands: Sequence[Array], outputs: int = 1, **attributes: Any) -> Any:
    names = [f"x{i}" for i in range(len(operands))]
    made = [f"y{i}" for i in range(outputs)]
    attributes = {name: list(value) if isinstance(value, tuple) else value for name, value in attributes.items()}
    inputs = [
        helper.make_tensor_value_info(name, numpy_helper.from_array(operand).data_type, operand.shape)
        for name, operand in zip(names, operands, strict=True)
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in made]
    graph = helper.make_graph([helper.make_node(op, names, made, **attributes)], "node", inputs, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    found = ReferenceEvaluator(model).run(None, dict(zip(names, operands, strict=True)))
    return found[0] if outputs == 1 else found
