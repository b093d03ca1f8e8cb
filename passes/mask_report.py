"""What passes report that give or take masks and leave everything else as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sift_onnx.analysis.cost import positions_of
from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.analysis.unanalyzed_layers import left_out_layers, left_out_warnings
from sift_onnx.graphs.constants import is_masked, shape_of

__all__ = ["describe_masks"]


def describe_masks(
    settings: Mapping[str, Any],
    analysis: AxisAnalysis,
    before: Mapping[str, int],
    after: Mapping[str, int],
    statuses: Mapping[str, tuple[str, str]],
    seconds: float,
) -> dict[str, Any]:
    """The JSON document of ``sift-onnx prune`` and ``sift-onnx densify`` (schema 1).

    Its layers have the fields of ``transform``; ``nnz`` and MACs count active weights, be they zero or not.

    Args:
        settings: of the pass.
        analysis: of the model.
        before: active weights of each layer before.
        after: active weights of each layer after.
        statuses: per layer ``sparse``, ``dense`` or ``unchanged``, and why.
        seconds: how long it took.
    """
    layers: list[dict[str, Any]] = []
    for name, layer in analysis.layers.items():
        shape, positions = list(shape_of(layer.constant)), positions_of(layer, analysis.system.original)
        weights = math.prod(shape)
        masked = is_masked(layer.constant)
        status, reason = statuses[name]
        layers.append(
            {
                "name": name,
                "node": layer.uses[0].node,
                "op": layer.uses[0].op,
                "kind": layer.kind,
                "shape_before": shape,
                "shape_after": shape,
                "macs_before": before[name] * positions,
                "macs_after": after[name] * positions,
                "nnz": after[name],
                "sparsity": 1 - after[name] / weights if weights else 0.0,
                "status": status,
                "reason": reason,
                "search_space": weights if masked else 0,
            }
        )
    left_out = left_out_layers(analysis)
    macs_before, macs_after = (sum(layer[key] for layer in layers) for key in ("macs_before", "macs_after"))
    return {
        "schema": 1,
        **settings,
        "layers": layers,
        "totals": {
            "weight_macs_before": macs_before,
            "weight_macs_after": macs_after,
            "weight_macs_ratio": macs_after / macs_before if macs_before else 1.0,
            "nnz_before": sum(before.values()),
            "nnz_after": sum(after.values()),
            "search_space": sum(layer["search_space"] for layer in layers),
        },
        "left_out": [layer.to_dict() for layer in left_out],
        "warnings": left_out_warnings(left_out),
        **analysis.inputs.to_dict(),
        "seconds": seconds,
    }
