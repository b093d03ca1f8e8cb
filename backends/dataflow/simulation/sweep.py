"""Speed-up over sparsity: the same layers with other shares of non-zeros, masks sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sift_onnx.backends.dataflow.cycles.fast import pass_limits, row_costs
from sift_onnx.backends.dataflow.cycles.mapping import map_product
from sift_onnx.backends.dataflow.machines.machine import GridMachine, Machine
from sift_onnx.backends.dataflow.simulation.band import band_of, corners
from sift_onnx.backends.dataflow.simulation.simulator import Settings, run
from sift_onnx.backends.dataflow.workloads.pattern import FullPattern, SampledPattern, ShardCounts, shard_counts
from sift_onnx.backends.dataflow.workloads.training_step import gradient_products
from sift_onnx.backends.dataflow.workloads.workload import SparseProduct, Workload
from sift_onnx.records.simulate import SweepPoint
from sift_onnx.weights.sparse import generator

__all__ = ["SPARSITIES", "sparsity_sweep"]

SPARSITIES = (0.25, 0.5, 0.75, 0.9, 0.95, 0.98)
# Rows that stand for all rows of a matrix; two windows at the widest.
_SAMPLED_ROWS = 128


class _Masks:
    """Counts of sampled rows, drawn once per matrix and sparsity."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._known: dict[tuple[object, ...], tuple[ShardCounts, float]] = {}

    def __call__(self, product: SparseProduct, machine: GridMachine, sparsity: float) -> tuple[ShardCounts, float]:
        """The counts, and how many times as many rows the matrix has."""
        matrix = product.pattern.map
        full = FullPattern(matrix)
        # Layers of one shape share a sample: the rows of one stand for the other's as well as for its own.
        key = (matrix.rows, matrix.columns, matrix.unit, matrix.size, product.step, sparsity)
        if key not in self._known:
            mapping = map_product(product, machine)
            counts = shard_counts(full, mapping.shard, mapping.columns_used * mapping.parts)
            rows = min(counts.rows, _SAMPLED_ROWS)
            room = (
                np.broadcast_to(counts.values, (rows, counts.values.shape[1]))
                if counts.repeat > 1
                else (counts.values[:rows])
            )
            rng = generator(self.seed, "sweep", *map(str, key))
            drawn = ShardCounts(rng.binomial(room, 1 - sparsity).astype(np.int32))
            self._known[key] = drawn, counts.rows / rows
        return self._known[key]


def sparsity_sweep(
    workload: Workload,
    machine: Machine,
    *,
    training: bool = False,
    sparsities: Sequence[float] = SPARSITIES,
    seed: int = 0,
) -> tuple[SweepPoint, ...]:
    """Speed-up of ``workload`` over its dense self at several sparsities, with the band of what is unknown.

    The layers that are sparse take each sparsity in turn; where none is, all of them do. A mask is sampled for some
    rows of each matrix, which stand for the others. Weights are streamed. Empty for a machine without a grid.
    """
    if not isinstance(machine, GridMachine) or not workload.products:
        return ()
    swept = [p for p in workload.products if p.is_sparse] or list(workload.products)
    pruned = {id(p) for p in swept}
    masks = _Masks(seed)
    machines = (machine, *corners(machine))
    fixed = [_fixed_cycles(workload, at, pruned, training) for at in machines]
    dense = [_product_cycles(swept, at, 0.0, masks, training) for at in machines]
    points = []
    for sparsity in sparsities:
        ratios = []
        for at, kept, before in zip(machines, fixed, dense, strict=True):
            after = _product_cycles(swept, at, sparsity, masks, training)
            ratios.append((kept + before) / (kept + after))
        band = band_of(ratios[0], ratios[1:])
        points.append(SweepPoint(sparsity=sparsity, value=band.value, low=band.low, high=band.high))
    return tuple(points)


def _fixed_cycles(workload: Workload, machine: GridMachine, pruned: set[int], training: bool) -> float:
    """Cycles of everything that stays as it is."""
    rest = replace(workload, products=tuple(p for p in workload.products if id(p) not in pruned))
    return float(sum(layer.cycles for layer in run(rest, machine, Settings(training=training))))


def _product_cycles(
    products: Sequence[SparseProduct], machine: GridMachine, sparsity: float, masks: _Masks, training: bool
) -> float:
    total = 0.0
    known: dict[tuple[object, ...], float] = {}
    for product in products:
        for step in (product, *(gradient_products(product) if training else ())):
            key = (id(step.pattern.map), step.step, step.tokens, step.sequential)
            if key not in known:
                known[key] = _cycles(step, machine, sparsity, masks)
            total += known[key]
    return total


def _cycles(product: SparseProduct, machine: GridMachine, sparsity: float, masks: _Masks) -> float:
    matrix = product.pattern.map
    pattern = SampledPattern(matrix, 0, 0, "") if sparsity else FullPattern(matrix)
    at_sparsity = replace(product, pattern=pattern)
    mapping = map_product(at_sparsity, machine)
    costs = row_costs(at_sparsity, machine, mapping, resident=False)
    if sparsity:
        counts, scale = masks(at_sparsity, machine, sparsity)
    else:
        counts, scale = shard_counts(pattern, mapping.shard, mapping.columns_used * mapping.parts), 1.0
    limits = pass_limits(counts, costs, mapping, machine, scale)
    return sum(limits.values()) * mapping.token_passes * product.sequential
