"""What all passes report of the weight layers of a model, changed or not."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from sift_onnx.analysis.findings import AxisAnalysis, WeightLayer
from sift_onnx.analysis.quantized_layers import QuantizedLayer, quantized_layers
from sift_onnx.analysis.unanalyzed_layers import left_out_layers, left_out_records, left_out_warnings
from sift_onnx.graphs.constants import is_masked, shape_of
from sift_onnx.operators.labels import node_name
from sift_onnx.records.transform import LayerChange, TransformReport, sum_up

__all__ = ["describe_layers", "layer_change", "quantized_changes"]

Shape = tuple[int, ...]


def layer_change(
    layer: WeightLayer,
    shapes: tuple[Shape, Shape],
    macs: tuple[int, int],
    nnz: tuple[int, int],
    status: tuple[str, str],
    *,
    masked: bool,
) -> LayerChange:
    """What became of a layer that is still one weight.

    Args:
        layer: the layer.
        shapes: of its weight, before and after.
        macs: multiply-accumulates of active weights, before and after.
        nnz: active weights, before and after.
        status: ``sparse``, ``dense`` or ``unchanged``, and why.
        masked: whether a mask chooses from its weights.
    """
    weights = math.prod(shapes[1])
    return LayerChange(
        name=layer.name,
        node=layer.uses[0].node,
        op=layer.uses[0].op,
        kind=layer.kind,
        shape_before=shapes[0],
        shape_after=shapes[1],
        macs_before=macs[0],
        macs_after=macs[1],
        nnz_before=nnz[0],
        nnz=nnz[1],
        sparsity=1 - nnz[1] / weights if weights else 0.0,
        status=status[0],
        reason=status[1],
        search_space=weights if masked else 0,
    )


def describe_layers(
    analysis: AxisAnalysis,
    layers: Sequence[LayerChange],
    start: float,
    *,
    attention_macs: tuple[int, int] | None = None,
    warnings: Sequence[str] = (),
) -> TransformReport:
    """The report of a pass, but for its settings.

    Args:
        analysis: of the model.
        layers: what became of each.
        start: of the call, by :func:`time.perf_counter`.
        attention_macs: of products of activations, before and after.
        warnings: besides those of layers that are left out.
    """
    left_out = left_out_layers(analysis)
    return TransformReport(
        layers=tuple(layers),
        totals=sum_up(layers, attention_macs),
        left_out=left_out_records(left_out),
        warnings=(*warnings, *left_out_warnings(left_out)),
        nominal=analysis.inputs.nominal,
        assumed=analysis.inputs.remarks,
        seconds=time.perf_counter() - start,
    )


def quantized_changes(analysis: AxisAnalysis) -> list[LayerChange]:
    """The layers of quantized weights, none of which a pass has changed."""
    return [_quantized_change(layer) for layer in quantized_layers(analysis)]


def _quantized_change(layer: QuantizedLayer) -> LayerChange:
    shape, macs = shape_of(layer.constant), layer.nnz * layer.positions
    weights = math.prod(shape)
    return LayerChange(
        name=layer.constant.name,
        node=node_name(layer.node),
        op=str(layer.node.op),
        kind=layer.kind,
        shape_before=shape,
        shape_after=shape,
        macs_before=macs,
        macs_after=macs,
        nnz_before=layer.nnz,
        nnz=layer.nnz,
        sparsity=1 - layer.nnz / weights if weights else 0.0,
        status="unchanged",
        reason="it is quantized",
        search_space=weights if is_masked(layer.constant) else 0,
    )
