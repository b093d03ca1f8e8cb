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

from sift_onnx.analysis.computed_integers import Integers, integers_of
from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.graphs.constants import is_masked, nnz_of, shape_of
from sift_onnx.graphs.walks import axis_order, origin_of
from sift_onnx.operators.traits import PARAMETER_VIEWS
from sift_onnx.operators.weight_operands import FOLDABLE, INTEGER_LAYERS, WEIGHT, feature_axes
from sift_onnx.weights.quads import live_quads, quads_of

__all__ = ["QuantizedLayer", "quantized_layers", "quantized_weight"]

# Layers that read integers through a DequantizeLinear.
_FLOAT_LAYERS = FOLDABLE | {"MatMul"}
_DATA, _ZERO_POINT = 0, 2


@dataclass(frozen=True)
class QuantizedLayer:
    """A weight of integers, and the node that multiplies by it; the first one where several do.

    Attributes:
        constant: the integers, or the floats that the graph quantizes, by the name of their tensor.
        index: of the node in the order of the analysis.
        node: the node.
        kind: ``conv``, ``depthwise``, ``gemm`` or ``matmul``.
        positions: multiply-accumulates per weight, over all nodes that multiply by it; 0 for those whose output has no
            known shape.
        nnz: integers that stand for another number than zero, or that a mask says are active.
        live_quads: share of quads along the input features that hold an integer which stands for another number than
            zero; None where it is not known which axis these are.
    """

    constant: gs.Constant
    index: int
    node: gs.Node
    kind: str
    positions: int
    nnz: int
    live_quads: float | None = None


def quantized_layers(analysis: AxisAnalysis) -> list[QuantizedLayer]:
    """The quantized weight layers of the graph that was analysed, in its order."""
    found: dict[str, QuantizedLayer] = {}
    for index, node in enumerate(analysis.order):
        weight = _integer_weight(node)
        if weight is None:
            continue
        integers, zero_point, axis, block, views = weight
        constant = integers.stored
        kind = _kind(node, shape_of(constant))
        positions = _positions(node, kind, analysis)
        known = found.get(constant.name)
        if known is not None:
            found[constant.name] = replace(known, positions=known.positions + positions)
            continue
        active = _other_than_zero(integers.values, zero_point, axis, block)
        nnz = nnz_of(constant) if is_masked(constant) else int(np.count_nonzero(active))
        quads = _live_quads(node, active, views)
        found[constant.name] = QuantizedLayer(constant, index, node, kind, positions, nnz, quads)
    return list(found.values())


def quantized_weight(graph: gs.Graph) -> str | None:
    """The name of a quantized weight that the graph multiplies by; None if there is none."""
    return next((weight[0].stored.name for node in graph.nodes if (weight := _integer_weight(node)) is not None), None)


def _integer_weight(node: gs.Node) -> tuple[Integers, gs.Tensor | None, int, int, list[gs.Node]] | None:
    """The integers that a node multiplies by, their zero point, its axis and block size, and nodes in between."""
    if node.op in INTEGER_LAYERS:
        weight, point = INTEGER_LAYERS[node.op]
        integers = integers_of(node.inputs[weight]) if weight < len(node.inputs) else None
        if integers is None:
            return None
        # Scales go with output features.
        is_row = "Conv" in node.op or (node.op == "QGemm" and bool(node.attrs.get("transB", 0)))
        return integers, _input(node, point), 0 if is_row else integers.values.ndim - 1, 0, []
    if node.op not in _FLOAT_LAYERS or len(node.inputs) < 2:
        return None
    # None of these changes how many weights are zero.
    tensor, views = origin_of(node.inputs[WEIGHT], PARAMETER_VIEWS)
    if len(tensor.inputs) != 1 or tensor.inputs[0].op != "DequantizeLinear":
        return None
    reader = tensor.inputs[0]
    integers = integers_of(reader.inputs[_DATA])
    if integers is None:
        return None
    return (
        integers,
        _input(reader, _ZERO_POINT),
        int(reader.attrs.get("axis", 1)),
        int(reader.attrs.get("block_size", 0)),
        views,
    )


def _input(node: gs.Node, i: int) -> gs.Tensor | None:
    return node.inputs[i] if i < len(node.inputs) and not node.inputs[i].is_empty() else None


def _other_than_zero(
    values: npt.NDArray[Any], zero_point: gs.Tensor | None, axis: int, block: int
) -> npt.NDArray[np.bool_]:
    point = integers_of(zero_point) if zero_point is not None else None
    zeros: npt.NDArray[Any] = np.zeros(1, values.dtype) if point is None else point.values
    if zeros.size == 1:
        return np.asarray(values != zeros.reshape(-1)[0])
    axis %= values.ndim
    if zeros.ndim == 1:
        zeros = zeros.reshape([-1 if i == axis else 1 for i in range(values.ndim)])
    elif block:
        zeros = np.repeat(zeros, block, axis=axis).take(range(values.shape[axis]), axis=axis)
    return np.asarray(values != zeros)


def _live_quads(node: gs.Node, active: npt.NDArray[np.bool_], views: Sequence[gs.Node]) -> float | None:
    """The share of quads with an active weight; ``views`` lie between the integers and the node."""
    if active.ndim < 2 or any(view.op not in ("DequantizeLinear", "Identity", "Transpose") for view in views):
        return None
    if node.op in INTEGER_LAYERS:
        last = (active.ndim - 1, active.ndim - 2)
        is_rows_first = "Conv" in node.op or bool(node.attrs.get("transB", 0))
        axes: tuple[int, int] | None = (0, 1) if is_rows_first else last
    else:
        axes = feature_axes(node.op, node.attrs, WEIGHT, active.ndim)
    if axes is None:
        return None
    ordered = np.moveaxis(active.transpose(axis_order(views, active.ndim)), axes, (0, 1))
    rows, channels = ordered.shape[:2]
    shaped = ordered.reshape(rows, channels, -1)
    return live_quads(shaped) / max(quads_of(*shaped.shape), 1)


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
