"""Machines without a grid, for contrast: a systolic array, and hardware on which FLOPs translate directly to time."""

from __future__ import annotations

import math

import numpy as np

from sift_onnx.backends.dataflow.cycles.layer_result import LayerResult
from sift_onnx.backends.dataflow.machines.machine import PICOJOULE, ArrayMachine, IdealMachine
from sift_onnx.backends.dataflow.workloads.pattern import shard_counts
from sift_onnx.backends.dataflow.workloads.workload import SparseProduct, subject_of

__all__ = ["simulate_product_without_grid", "systolic_cycles"]


def systolic_cycles(summed: int, features: int, tokens: int, rows: int, columns: int) -> int:
    """Cycles of a weight-stationary array: ``ceil(K / R) ceil(N / C) (2 R + C + M - 2) - 1``.

    SCALE-Sim v3 (``SparseRep csr``, ``OptimizedMapping false``, ``ws``) counts exactly these.

    Args:
        summed: ``K``, input features that are not skipped.
        features: ``N``, output features.
        tokens: ``M``.
        rows: ``R``, elements along the summed axis.
        columns: ``C``, elements along the output features.
    """
    folds = math.ceil(summed / rows) * math.ceil(features / columns)
    return max(1, folds * (2 * rows + columns + tokens - 2) - 1)


def simulate_product_without_grid(product: SparseProduct, machine: ArrayMachine | IdealMachine) -> LayerResult:
    """Cycles of one product; traffic is that of weights and activations once each."""
    matrix = product.pattern.map
    nnz, executed = product.pattern.nnz, product.macs
    notes: tuple[str, ...] = ()
    if isinstance(machine, ArrayMachine):
        shard = np.arange(matrix.columns)
        counts = shard_counts(product.pattern, shard, matrix.columns)
        summed = int(np.count_nonzero(counts.per_shard))
        cycles = product.sequential * systolic_cycles(
            summed, matrix.rows, product.tokens, machine.array_rows, machine.array_columns
        )
        notes = (f"{summed} of {matrix.columns} input features are used by some output; the others are skipped",)
    else:
        cycles = max(1, math.ceil(executed / machine.macs_per_cycle))
    busy = executed / machine.peak_macs_per_cycle
    value_bytes = machine.value_bytes
    return LayerResult(
        **subject_of(product),
        cycles=cycles,
        limits={"compute": float(cycles)},
        busy_cycles=min(busy, cycles),
        mean_busy_cycles=min(busy, cycles),
        utilization=executed / (cycles * machine.peak_macs_per_cycle),
        sram_bytes=float((matrix.rows + matrix.columns) * product.tokens * product.sequential * value_bytes),
        edge_index_bytes=float(nnz * value_bytes if product.is_sparse else 0),
        edge_value_bytes=float(nnz * value_bytes),
        busy_energy_j=executed * machine.mac_pj * PICOJOULE,
        notes=notes,
    )
