"""Weight layers whose weights are stored as integers: what there is to count about them.

No pass resizes or redraws them, and the axis analysis does not list them among the layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.graphs.constants import array_of, constant_values, is_masked, nnz_of, shape_of
from sift_onnx.graphs.walks import origin_of
from sift_onnx.operators.traits import PARAMETER_VIEWS
from sift_onnx.operators.weight_operands import FOLDABLE, INTEGER_LAYERS, WEIGHT

__all__ = ["QuantizedLayer", "quantized_layers"]

# Layers that read integers through a DequantizeLinear.
_FLOAT_LAYERS = FOLDABLE | {"MatMul"}
_DATA, _ZERO_POINT = 0, 2


@dataclass(frozen=True)
class QuantizedLayer:
    """A weight of integers, and the node that multiplies by it; the first one where several do.

    Attributes:
        constant: the integers.
        index: of the node in the order of the analysis.
        node: the node.
        kind: ``conv``, ``depthwise``, ``gemm`` or ``matmul``.
        positions: multiply-accumulates per weight, over all nodes that multiply by it; 0 for those whose output has no
            known shape.
        nnz: integers that stand for another number than zero, or that a mask says are active.
    """

    constant: gs.Constant
    index: int
    node: gs.Node
    kind: str
    positions: int
    nnz: int


def quantized_layers(analysis: AxisAnalysis) -> list[QuantizedLayer]:
    """The quantized weight layers of the graph that was analysed, in its order."""
    found: dict[str, QuantizedLayer] = {}
    for index, node in enumerate(analysis.order):
        weight = _integer_weight(node)
        if weight is None:
            continue
        constant, zero_point, axis, block = weight
        kind = _kind(node, shape_of(constant))
        positions = _positions(node, kind, analysis)
        known = found.get(constant.name)
        if known is not None:
            found[constant.name] = replace(known, positions=known.positions + positions)
            continue
        nnz = nnz_of(constant) if is_masked(constant) else _count(constant, zero_point, axis, block)
        found[constant.name] = QuantizedLayer(constant, index, node, kind, positions, nnz)
    return list(found.values())


def _integer_weight(node: gs.Node) -> tuple[gs.Constant, gs.Tensor | None, int, int] | None:
    """The integers that a node multiplies by, their zero point, and the axis and the block size of the latter."""
    if node.op in INTEGER_LAYERS:
        weight, point = INTEGER_LAYERS[node.op]
        constant = constant_values(node.inputs[weight]) if weight < len(node.inputs) else None
        if constant is None:
            return None
        # Scales go with output features.
        is_row = "Conv" in node.op or (node.op == "QGemm" and bool(node.attrs.get("transB", 0)))
        return constant, _input(node, point), 0 if is_row else len(shape_of(constant)) - 1, 0
    if node.op not in _FLOAT_LAYERS or len(node.inputs) < 2:
        return None
    # None of these changes how many weights are zero.
    tensor, _ = origin_of(node.inputs[WEIGHT], PARAMETER_VIEWS)
    if len(tensor.inputs) != 1 or tensor.inputs[0].op != "DequantizeLinear":
        return None
    reader = tensor.inputs[0]
    constant = constant_values(reader.inputs[_DATA])
    if constant is None:
        return None
    return (
        constant,
        _input(reader, _ZERO_POINT),
        int(reader.attrs.get("axis", 1)),
        int(reader.attrs.get("block_size", 0)),
    )


def _input(node: gs.Node, i: int) -> gs.Tensor | None:
    return node.inputs[i] if i < len(node.inputs) and not node.inputs[i].is_empty() else None


def _count(constant: gs.Constant, zero_point: gs.Tensor | None, axis: int, block: int) -> int:
    values = array_of(constant)
    point = constant_values(zero_point) if zero_point is not None else None
    zeros: npt.NDArray[Any] = np.zeros(1, values.dtype) if point is None else array_of(point)
    if zeros.size == 1:
        return int(np.count_nonzero(values != zeros.reshape(-1)[0]))
    axis %= values.ndim
    if zeros.ndim == 1:
        zeros = zeros.reshape([-1 if i == axis else 1 for i in range(values.ndim)])
    elif block:
        zeros = np.repeat(zeros, block, axis=axis).take(range(values.shape[axis]), axis=axis)
    return int(np.count_nonzero(values != zeros))


def _kind(node: gs.Node, shape: Sequence[int]) -> str:
    if "Conv" not in node.op:
        return "gemm" if node.op in ("Gemm", "QGemm") else "matmul"
    group = int(node.attrs.get("group", 1))
    return "depthwise" if group > 1 and shape[1] == 1 else "conv"


def _positions(node: gs.Node, kind: str, analysis: AxisAnalysis) -> int:
    """Pixels, or rows, that each weight is applied at; those of the input where a convolution is transposed."""
    tensor = node.inputs[0] if node.op == "ConvTranspose" else node.outputs[0]
    axes = analysis.axes.get(tensor.name)
    if axes is None:
        return 0
    sizes = [analysis.system.original(axis.size) for axis in axes]
    return math.prod(sizes[:1] + sizes[2:] if kind in ("conv", "depthwise") else sizes[:-1])
