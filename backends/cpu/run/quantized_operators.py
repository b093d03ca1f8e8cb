"""From a spec of quantized values to the operator on quads that does it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import Layout
from sift_onnx.backends.lowering.quantization import Quantization
from sift_onnx.backends.lowering.specs import (
    ByteTable,
    Dequantize,
    DynamicQuantize,
    Geometry,
    Pool,
    Quantize,
    QuantizedAdd,
    QuantizedAverage,
    QuantizedConv,
    QuantizedMatmul,
    QuantizedMean,
    Spec,
)

__all__ = ["FloatResult", "build_layer", "build_quantized"]

_POINT = Geometry((1, 1))
# Scale and zero point.
_Pair = tuple[float, int]


@dataclass(frozen=True)
class FloatResult:
    """How a layer makes floats.

    Attributes:
        layout: of them.
        added: layout of the second operand, if floats are added.
        quantization: of the bytes beside them, if these are made as well.
    """

    layout: Layout
    added: Layout | None = None
    quantization: Quantization | None = None


def build_layer(spec: QuantizedMatmul, floats: FloatResult, weights: _kernels.QuadWeights, isa: str) -> _kernels.Op:
    """The operator of a layer of integers.

    Args:
        spec: of the layer.
        floats: where it makes these.
        weights: of the layer.
        isa: instruction set.
    """
    geometry = spec.geometry if isinstance(spec, QuantizedConv) else _POINT
    window: dict[str, Any] = {"stride": geometry.stride, "dilation": geometry.dilation, "pads": geometry.pads}
    if spec.y is None:
        kind, low, high = spec.activation
        if kind == "none":
            low, high = -math.inf, math.inf
        return _kernels.DequantizedConv(
            weights, spec.bias, spec.scale, spec.shift, input_zero_point=spec.x_zero, added=floats.added, low=low,
            high=high, quantization=None if floats.quantization is None else _pair(floats.quantization),
            layout=floats.layout, isa=isa, **window,
        )  # fmt: skip
    assert spec.x_zero is not None  # dynamic ones make floats
    divisor = spec.y.scale if spec.is_divided else 1.0
    multipliers = spec.scale if spec.is_divided else spec.scale / np.float32(spec.y.scale)
    return _kernels.QuantizedConv(
        weights, spec.bias, multipliers, input_zero_point=spec.x_zero, zero_point=spec.y.zero, divisor=divisor,
        range=(spec.added or spec.shifted or spec).clamp,
        addition=None if spec.added is None else _addition(spec.added),
        channel_addition=None if spec.shifted is None else (spec.shifted.factor, spec.shifted.rests),
        isa=isa, **window,
    )  # fmt: skip


def build_quantized(spec: Spec, layout: Layout, isa: str) -> _kernels.Op:
    """The operator that does ``spec``.

    Args:
        spec: whose operand or result is quantized, but for layers and what moves values.
        layout: of the floats that it reads or makes; unused where both are bytes.
        isa: instruction set.
    """
    match spec:
        case Quantize(y=y):
            return _kernels.Quantize(*_pair(y), source=layout, isa=isa)
        case DynamicQuantize():
            return _kernels.DynamicQuantize(source=layout, isa=isa)
        case Dequantize(x=x):
            return _kernels.Dequantize(*_pair(x), layout=layout, isa=isa)
        case QuantizedAdd():
            return _kernels.QuadAdd(_addition(spec), range=spec.clamp, isa=isa)
        case ByteTable():
            return _kernels.QuadTable(spec.values, isa=isa)
        case Pool(kind="max", geometry=window):
            return _kernels.QuadMaxPool(window.kernel, window.stride, window.dilation, window.pads,
                                        ceil_mode=spec.ceil_mode, isa=isa)  # fmt: skip
        case QuantizedAverage(pool=Pool(geometry=window) as pool):
            return _kernels.QuadAveragePool(
                _pair(spec.x), _pair(spec.y), window.kernel, window.stride, window.dilation, window.pads,
                ceil_mode=pool.ceil_mode, count_padding=pool.count_include_pad, isa=isa,
            )  # fmt: skip
        case QuantizedMean():
            return _kernels.QuadGlobalAverage(_pair(spec.x), _pair(spec.y), isa=isa)
    raise AssertionError(f"{type(spec).__name__} has no operator on quads")


def _addition(spec: QuantizedAdd) -> tuple[_Pair, _Pair, _Pair]:
    return _pair(spec.a), _pair(spec.b), _pair(spec.y)


def _pair(of: Quantization) -> _Pair:
    return of.scale, of.zero
