"""One layer in several runs as one: what is counted adds up, what is a share is its mean over the cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sift_onnx.backends.dataflow.cycles.layer_result import BOUNDS, LayerResult

__all__ = ["summed"]

_COUNTED = (
    "tokens", "macs", "cycles", "busy_cycles", "mean_busy_cycles", "wavelets", "fabric_bytes", "sram_bytes",
    "edge_index_bytes", "edge_value_bytes", "busy_energy_j", "idle_energy_j", "edge_energy_j",
)  # fmt: skip


def summed(runs: Sequence[tuple[LayerResult, int]]) -> LayerResult:
    """The sum of results of one layer, each with how often it is meant; it has the sizes of the first one."""
    first = runs[0][0]
    cycles = sum(layer.cycles * times for layer, times in runs)
    counted = {name: sum(getattr(layer, name) * times for layer, times in runs) for name in _COUNTED}
    limits = {name: sum(layer.limits.get(name, 0.0) * times for layer, times in runs) for name in BOUNDS}
    return replace(
        first,
        **counted,
        limits={name: value for name, value in limits.items() if value},
        utilization=sum(layer.utilization * layer.cycles * times for layer, times in runs) / cycles,
        imbalance=sum(layer.imbalance * layer.cycles * times for layer, times in runs) / cycles,
        notes=tuple(dict.fromkeys(note for layer, _ in runs for note in layer.notes)),
        events=None,
        **_on_the_grid(runs),
    )


def _on_the_grid(runs: Sequence[tuple[LayerResult, int]]) -> dict[str, Any]:
    """Which grid columns were busy; of the sum, that is known where all runs spread their tokens alike."""
    first = runs[0][0]
    if any(layer.row_share != first.row_share or len(layer.column_busy) != len(first.column_busy) for layer, _ in runs):
        return {"column_busy": np.zeros(0), "column_wavelets": np.zeros(0, np.int64), "row_share": (0, 0, 1.0)}
    return {
        "column_busy": np.sum([layer.column_busy * times for layer, times in runs], axis=0),
        "column_wavelets": np.sum([layer.column_wavelets * times for layer, times in runs], axis=0),
        "row_share": first.row_share,
    }
