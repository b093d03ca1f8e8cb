"""The report of a Wide transform, as the JSON document that scripts rely on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sift_onnx.analysis.cost import product_macs
from sift_onnx.analysis.unanalyzed_layers import left_out_layers, left_out_warnings
from sift_onnx.graphs.constants import is_masked, nnz_of
from sift_onnx.model import Model
from sift_onnx.operators.labels import operator_label
from sift_onnx.passes.widening.plan import WidePlan
from sift_onnx.passes.widening.settings import WideSettings

__all__ = ["describe", "dropped_masks"]

# Share of the MACs that may be lost to rounding without a word.
_UNUSED_BUDGET = 1e-3


def describe(
    settings: WideSettings,
    plan: WidePlan,
    model: Model,
    seconds: float,
    *,
    biases: Sequence[str] = (),
    dropped: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """The document of ``sift-onnx transform`` (schema 1).

    MACs are multiply-accumulates of non-zero weights at the analysed input shapes, batch 1 unless given.

    Args:
        settings: the pass.
        plan: what was done.
        model: the result.
        seconds: how long it took.
        biases: names of biases that layers got, where there were none.
        dropped: names of weights whose masks were not kept.
        warnings: of the model that came in.
    """
    analysis, solution = plan.analysis, plan.solution
    original = analysis.system.original
    layers: list[dict[str, Any]] = []
    nnz_before = search_space = 0
    for name, layer in analysis.layers.items():
        before = [original(axis.size) for axis in layer.axes]
        after = [solution.value(axis.size) for axis in layer.axes]
        status, reason = plan.statuses[name]
        weights = math.prod(after)
        embedded = settings.init == "embed" and name in plan.nnz
        old_nnz = plan.nnz[name] if embedded else nnz_of(layer.constant) if status == "unchanged" else math.prod(before)
        nnz = plan.nnz.get(name, old_nnz if status == "unchanged" else weights)
        nnz_before += old_nnz
        masked = name in plan.nnz or (status == "unchanged" and is_masked(layer.constant))
        search_space += weights if masked else 0
        layers.append(
            {
                "name": name,
                "node": layer.uses[0].node,
                "op": layer.uses[0].op,
                "kind": layer.kind,
                "shape_before": before,
                "shape_after": after,
                "macs_before": plan.before[name],
                "macs_after": plan.after[name],
                "nnz": nnz,
                "sparsity": 1 - nnz / weights if weights else 0.0,
                "status": status,
                "reason": reason,
                "search_space": weights if masked else 0,
            }
        )
    left_out = left_out_layers(analysis)
    macs_before, macs_after = sum(plan.before.values()), sum(plan.after.values())
    return {
        "schema": 1,
        "pass": settings.name,
        "sparsity": float(settings.share),
        "sparsity_requested": float(settings.share),
        "pattern": str(settings.masking.pattern),
        "distribution": settings.masking.distribution,
        "init": settings.init,
        "width_factor": math.sqrt(settings.factor_squared),
        "layers": layers,
        "totals": {
            "weight_macs_before": macs_before,
            "weight_macs_after": macs_after,
            "weight_macs_ratio": macs_after / macs_before if macs_before else 1.0,
            "attention_macs_before": product_macs(analysis, original),
            "attention_macs_after": product_macs(analysis, solution.value),
            "nnz_before": nnz_before,
            "nnz_after": sum(layer["nnz"] for layer in layers),
            "search_space": search_space,
        },
        "biases_added": list(biases),
        "masks_dropped": list(dropped),
        "pinned": _pinned(plan),
        "left_out": [layer.to_dict() for layer in left_out],
        "warnings": [*warnings]
        + [
            f"no factor 1/sqrt(d) was found at {name!r}; if it is baked in, it still fits the old head size"
            for name in analysis.unscaled
        ]
        + dropped_masks(dropped)
        + _unused_budget(settings, macs_before, macs_after)
        + left_out_warnings(left_out),
        **analysis.inputs.to_dict(),
        "unknown": [operator_label(node) for node in analysis.unknown],
        "seconds": seconds,
    }


def dropped_masks(names: Sequence[str]) -> list[str]:
    """A warning that masks were not kept, if any were not."""
    if not names:
        return []
    listed = ", ".join(map(repr, names[:4])) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return [
        f"masks that were there are not kept: {listed}; what grows is drawn again, at the cost of the layer without "
        "its mask. `init='embed'` keeps values and masks"
    ]


def _unused_budget(settings: WideSettings, before: int, after: int) -> list[str]:
    """A warning where whole blocks are too coarse for the budget; a budget of the total leaves weights less anyway."""
    if settings.masking.pattern.unit == 1 or settings.budget == "total" or after >= before * (1 - _UNUSED_BUDGET):
        return []
    return [f"whole blocks ({settings.masking.pattern}) leave {1 - after / before:.2%} of the weight MACs unused"]


def _pinned(plan: WidePlan) -> list[dict[str, Any]]:
    """Feature axes of weight layers that something keeps from growing, one entry for each size and cause.

    ``macs_share`` is the part of the original's weight MACs in the layers that such an axis belongs to.
    """
    system = plan.analysis.system
    entries: dict[tuple[int, str, str, str], dict[str, Any]] = {}
    total = sum(plan.before.values())
    for name, layer in plan.analysis.layers.items():
        for axis in layer.axes:
            cause = system.why_pinned(axis.size)
            if cause is None or cause.reason == "kernel":
                continue
            size = system.original(axis.size)
            key = (size, cause.node, cause.op, cause.reason)
            entry = entries.setdefault(
                key,
                {
                    "size": size,
                    "layers": [],
                    "node": cause.node,
                    "op": cause.op,
                    "reason": cause.reason,
                    "macs_share": 0.0,
                },
            )
            if name not in entry["layers"]:
                entry["layers"].append(name)
                entry["macs_share"] += plan.before[name] / total if total else 0.0
    return list(entries.values())
