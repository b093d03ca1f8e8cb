"""The fast cycle model: non-zeros counted per output row and grid column, then windows of rows.

A grid column broadcasts the same weights to all its cores, so that a grid of any height collapses to its columns. Of
output row ``r`` and grid column ``c``, with ``B`` tokens in a core::

    compute  C[r, c] = nnz[r, c] (t0 + ceil(B / lanes) v) + row overhead
    reduce   R       = ceil(B bytes / link bytes)              one partial sum per link and row
    stream   S[r]    = bytes of the row's weights / bytes per cycle over the wafer's edge

Columns may run apart by a window of ``W`` rows; a window takes ``max(max_c sum C, W R, sum S)``. ``W = 1`` is lockstep,
``W = inf`` perfect balance. Filling and draining the fabric take one cycle per hop. An event-driven model of the same
machine (``event.py``) says how far off this is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.dataflow.cycles.layer_result import Bound, LayerResult
from sift_onnx.backends.dataflow.cycles.mapping import Mapping, map_product
from sift_onnx.backends.dataflow.machines.machine import PICOJOULE, GridMachine
from sift_onnx.backends.dataflow.workloads.pattern import Pattern, ShardCounts, shard_counts
from sift_onnx.backends.dataflow.workloads.workload import SparseProduct, subject_of

__all__ = ["RowCosts", "axpy_cycles", "layer_of", "pass_limits", "row_costs", "simulate_product", "window_limits"]

Array = npt.NDArray[Any]
Counter = Callable[[Pattern, Array, int], ShardCounts]


@dataclass(frozen=True)
class RowCosts:
    """What one output row costs, per non-zero and per row.

    Attributes:
        axpy: cycles of a core per non-zero.
        overhead: cycles of a core per row.
        reduce: cycles of a link per row; for the gradient of weights, in which rows are broadcast instead, the same.
        column_words: cycles of a vertical link per non-zero; only the gradient of weights is reduced along columns.
        index_bytes: over the wafer's edge per non-zero.
        value_bytes: the same, of values.
        sram_limited: whether the SRAM ports, not the SIMD unit, set ``axpy``.
    """

    axpy: float
    overhead: float
    reduce: float
    column_words: float
    index_bytes: float
    value_bytes: float
    sram_limited: bool


def axpy_cycles(machine: GridMachine, tokens: int, sparse: bool) -> tuple[float, bool]:
    """Cycles of one AXPY over ``tokens``, and whether the SRAM ports set them.

    Every vector step reads activations and partial sums and writes partial sums back.
    """
    port = machine.simd_lanes * (machine.value_bytes + 2 * machine.partial_sum_bytes) / machine.sram_port_bytes
    startup = machine.axpy_startup if sparse else machine.dense_startup
    steps = -(-tokens // machine.simd_lanes)
    return startup + steps * max(machine.cycles_per_vector, port), port > machine.cycles_per_vector


def row_costs(product: SparseProduct, machine: GridMachine, mapping: Mapping, resident: bool) -> RowCosts:
    """The costs of ``product`` as it lies on the grid; ``resident`` weights do not pass the wafer's edge."""
    axpy, sram_limited = axpy_cycles(machine, mapping.tokens_per_core, product.is_sparse)
    gradient = product.step == "weight_gradient"
    # Activations that are broadcast for the gradient of weights are values; what a reduction carries are partial sums.
    word_bytes = machine.value_bytes if gradient else machine.partial_sum_bytes
    reduce = math.ceil(mapping.tokens_per_core * word_bytes / machine.link_bytes) if mapping.reduced else 0
    index_bytes = machine.edge_index_bytes if product.is_sparse else 0.0
    return RowCosts(
        axpy=axpy,
        overhead=machine.row_overhead,
        reduce=reduce,
        column_words=math.ceil(machine.partial_sum_bytes / machine.link_bytes)
        if gradient and mapping.rows_used > 1
        else 0,
        index_bytes=0.0 if resident else index_bytes,
        # Of the gradient, indices come in and values go out.
        value_bytes=machine.edge_value_bytes if gradient or not resident else 0.0,
        sram_limited=sram_limited,
    )


def window_limits(
    counts: ShardCounts, costs: RowCosts, window_rows: float, edge_bytes_per_cycle: float
) -> dict[Bound, float]:
    """Cycles of all windows, by what bound each of them.

    Args:
        counts: non-zeros per row and grid column.
        costs: of a row.
        window_rows: ``W``; ``inf`` is one window.
        edge_bytes_per_cycle: over the wafer's edge.
    """
    totals: dict[Bound, float] = dict.fromkeys(("compute", "reduce", "stream", "sram"), 0.0)
    compute_bound: Bound = "sram" if costs.sram_limited else "compute"
    for busiest, total, rows, times in _windows(counts, window_rows):
        compute = busiest * costs.axpy + rows * costs.overhead
        reduce = np.maximum(rows * costs.reduce, busiest * costs.column_words)
        stream = total * (costs.index_bytes + costs.value_bytes) / edge_bytes_per_cycle
        longest = np.maximum(np.maximum(compute, reduce), stream)
        by_compute = compute >= longest
        by_reduce = ~by_compute & (reduce >= longest)
        totals[compute_bound] += times * float(longest[by_compute].sum())
        totals["reduce"] += times * float(longest[by_reduce].sum())
        totals["stream"] += times * float(longest[~by_compute & ~by_reduce].sum())
    return totals


def _windows(counts: ShardCounts, window_rows: float) -> Iterator[tuple[Array, Array, Array, int]]:
    """Per window: non-zeros of the busiest grid column, of all of them, and rows; and how often this is repeated."""
    values, rows = counts.values, counts.rows
    if window_rows >= rows:
        yield np.array([counts.per_shard.max()]), np.array([counts.per_shard.sum()]), np.array([rows]), 1
        return
    size = int(window_rows)
    if counts.repeat > 1:
        if len(values) != 1:
            raise ValueError("only a matrix of equal rows is given by its period")
        for length, times in ((size, rows // size), (rows % size, 1)):
            if length and times:
                row = values[0].astype(np.int64)
                yield np.array([length * row.max()]), np.array([length * row.sum()]), np.array([length]), times
        return
    sums = _window_sums(values, size)
    starts = np.arange(0, rows, size)
    yield sums.max(axis=1), sums.sum(axis=1), np.diff(np.append(starts, rows)), 1


def _window_sums(values: Array, size: int) -> Array:
    """Sums of ``size`` rows each, the last of what is left: ``[windows, shards]``, int64.

    Whole rows are added, which takes a tenth of the time of ``np.add.reduceat``, in as few steps as possible.
    """
    rows = len(values)
    if size * size > rows:
        return np.stack([values[at : at + size].sum(axis=0, dtype=np.int64) for at in range(0, rows, size)])
    sums: Array = values[::size].astype(np.int64)
    for place in range(1, size):
        row = values[place::size]
        sums[: len(row)] += row
    return sums


def simulate_product(
    product: SparseProduct,
    machine: GridMachine,
    *,
    resident: bool = False,
    resident_bytes: float = 0.0,
    count: Counter = shard_counts,
) -> LayerResult:
    """Cycles, traffic and energy of one product.

    Args:
        product: what is multiplied.
        machine: the grid.
        resident: weights stay in SRAM and do not pass the wafer's edge.
        resident_bytes: what all weights together take of each core.
        count: counts non-zeros; a :class:`CountMemory` where the same product is simulated on several machines.

    Raises:
        UnsupportedError: it does not fit in SRAM.
    """
    mapping = map_product(product, machine, resident_bytes)
    counts = count(product.pattern, mapping.shard, mapping.columns_used * mapping.parts)
    costs = row_costs(product, machine, mapping, resident)
    limits = pass_limits(counts, costs, mapping, machine)
    runs = mapping.token_passes * product.sequential
    per_column = counts.per_shard.reshape(mapping.parts, mapping.columns_used).sum(axis=0)
    return layer_of(product, machine, mapping, costs, {k: v * runs for k, v in limits.items()}, per_column)


def pass_limits(
    counts: ShardCounts, costs: RowCosts, mapping: Mapping, machine: GridMachine, scale: float = 1.0
) -> dict[Bound, float]:
    """Cycles of one pass over the weights, by what bound them; filling and draining the fabric included.

    Args:
        counts: non-zeros per row and grid column of each part.
        costs: of a row.
        mapping: of the product onto the grid.
        machine: the grid.
        scale: how many times the rows of ``counts`` the matrix has, where they are a sample.
    """
    used = mapping.columns_used
    # Without a reduction across columns nothing synchronizes them.
    window = machine.window_rows if mapping.reduced else math.inf
    limits: dict[Bound, float] = {}
    for part in range(mapping.parts):
        piece = ShardCounts(counts.values[:, part * used : (part + 1) * used], counts.repeat)
        for name, cycles in window_limits(piece, costs, window, machine.edge_bytes_per_cycle).items():
            limits[name] = limits.get(name, 0.0) + cycles * scale
    limits["stream"] += (mapping.rows_used - 1) * machine.hop_cycles * mapping.parts
    if mapping.reduced:
        limits["reduce"] += (costs.reduce + (used - 1) * machine.hop_cycles) * mapping.parts
    return limits


def layer_of(
    product: SparseProduct,
    machine: GridMachine,
    mapping: Mapping,
    costs: RowCosts,
    limits: dict[Bound, float],
    per_column: Array,
) -> LayerResult:
    """The figures of a layer whose cycles are known.

    Args:
        product: what is multiplied.
        machine: the grid.
        mapping: of the product onto it.
        costs: of a row.
        limits: cycles by what bound them, over all passes.
        per_column: non-zeros per grid column, ``[columns used]``.
    """
    matrix, runs = product.pattern.map, mapping.token_passes * product.sequential
    column_busy = (per_column * costs.axpy + matrix.rows * mapping.parts * costs.overhead) * runs
    short = max(0, mapping.tokens_per_core - 1)
    short_axpy = axpy_cycles(machine, short, product.is_sparse)[0] if short else 0.0
    ratio = short_axpy / costs.axpy if costs.axpy else 1.0
    full = mapping.full_rows if mapping.token_passes == 1 else mapping.rows_used
    busy = float(column_busy.sum()) * (full + (mapping.rows_used - full) * ratio)
    total = sum(limits.values())
    # Fitted costs give fractions of a cycle; a layer ends with a whole one. Rounding errors do not count as a cycle.
    cycles = max(1, math.ceil(total - 1e-6 * max(1.0, total * 1e-6)))
    limits = {name: value * cycles / total if total else value for name, value in limits.items()}
    if not total:
        limits["compute"] = 1.0
    words = product.tokens * machine.partial_sum_bytes if mapping.reduced else 0
    reduce_hops = matrix.rows * mapping.parts * (mapping.columns_used - 1) * product.sequential
    weight_bytes = machine.link_bytes if math.isfinite(machine.link_bytes) else machine.edge_value_bytes
    sent = product.pattern.nnz * runs
    mean = float(column_busy.mean())
    core_cycle_j = machine.core_cycle_pj * PICOJOULE
    edge = (costs.index_bytes * sent, costs.value_bytes * sent)
    return LayerResult(
        **subject_of(product),
        cycles=cycles,
        limits=limits,
        busy_cycles=min(float(column_busy.max()), float(cycles)),
        mean_busy_cycles=busy / machine.cores,
        utilization=product.macs / (cycles * machine.peak_macs_per_cycle),
        imbalance=float(column_busy.max()) / mean if mean else 1.0,
        wavelets=sent + math.ceil(words / machine.link_bytes) * matrix.rows,
        fabric_bytes=sent * weight_bytes * (mapping.rows_used - 1) + float(words) * reduce_hops,
        sram_bytes=float(product.macs) * (machine.value_bytes + 2 * machine.partial_sum_bytes)
        + float(matrix.rows) * product.tokens * product.sequential * machine.value_bytes,
        edge_index_bytes=edge[0],
        edge_value_bytes=edge[1],
        busy_energy_j=busy * core_cycle_j,
        idle_energy_j=max(0.0, float(cycles) * machine.cores - busy) * core_cycle_j * machine.idle_fraction,
        edge_energy_j=(edge[0] + edge[1]) * machine.edge_byte_pj * PICOJOULE,
        notes=mapping.notes,
        column_busy=column_busy,
        column_wavelets=per_column * runs,
        row_share=(full, mapping.rows_used - full, ratio),
    )
