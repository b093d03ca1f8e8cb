"""What passes report that give or take masks and leave everything else as it is."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from sift_onnx.analysis.cost import positions_of
from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.analysis.unanalyzed_layers import left_out_layers, left_out_records, left_out_warnings
from sift_onnx.graphs.constants import is_masked, shape_of
from sift_onnx.records.transform import LayerChange, TransformReport, sum_up

__all__ = ["describe_masks"]


def describe_masks(
    analysis: AxisAnalysis,
    before: Mapping[str, int],
    after: Mapping[str, int],
    statuses: Mapping[str, tuple[str, str]],
    start: float,
) -> TransformReport:
    """What ``sift-onnx prune`` and ``sift-onnx densify`` report, but for the settings of the pass.

    ``nnz`` and MACs count active weights, whether they are zero or not.

    Args:
        analysis: of the model.
        before: active weights of each layer before.
        after: active weights of each layer after.
        statuses: per layer ``sparse``, ``dense`` or ``unchanged``, and why.
        start: of the call, by :func:`time.perf_counter`.
    """
    layers: list[LayerChange] = []
    for name, layer in analysis.layers.items():
        shape, positions = shape_of(layer.constant), positions_of(layer, analysis.system.original)
        weights = math.prod(shape)
        status, reason = statuses[name]
        layers.append(
            LayerChange(
                name=name,
                node=layer.uses[0].node,
                op=layer.uses[0].op,
                kind=layer.kind,
                shape_before=shape,
                shape_after=shape,
                macs_before=before[name] * positions,
                macs_after=after[name] * positions,
                nnz_before=before[name],
                nnz=after[name],
                sparsity=1 - after[name] / weights if weights else 0.0,
                status=status,
                reason=reason,
                search_space=weights if is_masked(layer.constant) else 0,
            )
        )
    left_out = left_out_layers(analysis)
    return TransformReport(
        layers=tuple(layers),
        totals=sum_up(layers),
        left_out=left_out_records(left_out),
        warnings=tuple(left_out_warnings(left_out)),
        nominal=analysis.inputs.nominal,
        assumed=analysis.inputs.remarks,
        seconds=time.perf_counter() - start,
    )
