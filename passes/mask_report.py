"""What passes report that give or take masks and leave everything else as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sift_onnx.analysis.cost import positions_of
from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.graphs.constants import is_masked, shape_of
from sift_onnx.passes.layer_report import describe_layers, layer_change
from sift_onnx.records.transform import LayerChange, TransformReport

__all__ = ["describe_masks"]


def describe_masks(
    analysis: AxisAnalysis,
    before: Mapping[str, int],
    after: Mapping[str, int],
    statuses: Mapping[str, tuple[str, str]],
    start: float,
    others: Sequence[LayerChange] = (),
) -> TransformReport:
    """What ``sift-onnx prune`` and ``sift-onnx densify`` report, but for the settings of the pass.

    ``nnz`` and MACs count active weights, whether they are zero or not.

    Args:
        analysis: of the model.
        before: active weights of each layer before.
        after: active weights of each layer after.
        statuses: per layer ``sparse``, ``dense`` or ``unchanged``, and why.
        start: of the call, by :func:`time.perf_counter`.
        others: layers besides those of the analysis.
    """
    layers: list[LayerChange] = []
    for name, layer in analysis.layers.items():
        shape, positions = shape_of(layer.constant), positions_of(layer, analysis.system.original)
        macs, nnz = (before[name] * positions, after[name] * positions), (before[name], after[name])
        masked = is_masked(layer.constant)
        layers.append(layer_change(layer, (shape, shape), macs, nnz, statuses[name], masked=masked))
    return describe_layers(analysis, [*layers, *others], start)
