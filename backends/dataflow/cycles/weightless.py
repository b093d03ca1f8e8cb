"""Cycles of work without weights: spread evenly over all cores, bound by the resource that it needs most.

The spread is assumed to be perfect. What a weight-streaming machine does with attention is not published; its share of
the total is a few percent in the models of this project, and the report lists it separately.
"""

from __future__ import annotations

import math

from sift_onnx.backends.dataflow.cycles.layer_result import Bound, LayerResult
from sift_onnx.backends.dataflow.machines.machine import GridMachine, Machine
from sift_onnx.backends.dataflow.workloads.workload import WeightlessOp

__all__ = ["simulate_weightless"]

_PJ = 1e-12


def simulate_weightless(op: WeightlessOp, machine: Machine) -> LayerResult:
    """Cycles, traffic and energy of ``op``; on a machine without a grid, of its operations at peak."""
    if isinstance(machine, GridMachine):
        return _on_grid(op, machine)
    operations = max(op.operations, 1)
    cycles = max(1, math.ceil(operations / machine.peak_macs_per_cycle))
    return _result(
        op,
        cycles,
        {"compute": float(cycles)},
        operations / (cycles * machine.peak_macs_per_cycle),
        (0.0, float((op.elements_in + op.elements_out) * machine.value_bytes), 0.0),
        (float(cycles), float(cycles)),
        (operations * machine.mac_pj * _PJ, 0.0, 0.0),
    )


def _on_grid(op: WeightlessOp, machine: GridMachine) -> LayerResult:
    cores = machine.cores
    steps = math.ceil(math.ceil(op.operations / cores) / machine.simd_lanes)
    compute = steps * machine.cycles_per_vector
    moved = (op.elements_in + op.elements_out) * machine.value_bytes
    if op.kind == "product":
        # Each multiply-accumulate reads an operand, and reads and writes a partial sum, as in an AXPY.
        moved = op.operations * (machine.value_bytes + 2 * machine.partial_sum_bytes)
    sram = math.ceil(moved / cores) / machine.sram_port_bytes
    per_core = -(-max(op.elements_in, 1) // cores)
    ring = machine.columns > 1 and op.ring_passes
    # Sums of a token come together along a row of cores, and their result goes back.
    reduce = ring * (2 * (machine.columns - 1) * machine.hop_cycles + _words(per_core, machine)) if ring else 0.0
    fabric = float(ring * (machine.columns - 1) * machine.rows * machine.link_bytes) if ring else 0.0
    edge = 0.0
    if op.kind == "lookup":
        # Each row of the table that is asked for is broadcast once; at most, all of them are.
        edge = min(op.table_elements, op.elements_out) * machine.edge_value_bytes
    if op.kind == "copy" and machine.cores > 1:
        reduce = math.ceil(op.elements_out / cores) * machine.value_bytes / machine.link_bytes
        fabric = float(op.elements_out * machine.value_bytes)
    demands: dict[Bound, float] = {
        "compute": compute,
        "sram": sram,
        "reduce": reduce,
        "stream": edge / machine.edge_bytes_per_cycle,
    }
    bound: Bound = max(demands, key=lambda name: demands[name])
    cycles = max(1, math.ceil(demands[bound]))
    used = {
        "compute": op.operations * machine.cycles_per_vector / (cores * machine.simd_lanes),
        "sram": moved / (cores * machine.sram_port_bytes),
        "reduce": demands["reduce"],
        "stream": demands["stream"],
    }
    share = max(used.values()) / cycles
    busy = max(compute, sram)
    seconds = machine.core_cycle_pj * _PJ
    return _result(
        op,
        cycles,
        {bound: float(cycles)},
        # An operator that does nothing measurable still takes its cycle.
        share if share > 0 else 1.0 / (cycles * cores),
        (fabric, float(moved), edge),
        (min(busy, cycles), min(busy, cycles)),
        (
            busy * cores * seconds,
            max(0.0, cycles - busy) * cores * seconds * machine.idle_fraction,
            edge * machine.edge_byte_pj * _PJ,
        ),
    )


def _words(elements: int, machine: GridMachine) -> int:
    return math.ceil(elements * machine.partial_sum_bytes / machine.link_bytes)


def _result(
    op: WeightlessOp,
    cycles: int,
    limits: dict[Bound, float],
    utilization: float,
    traffic: tuple[float, float, float],
    busy: tuple[float, float],
    energy: tuple[float, float, float],
) -> LayerResult:
    """``traffic``: fabric, SRAM and edge bytes; ``busy``: of the busiest core and on average."""
    return LayerResult(
        name=op.node,
        node=op.node,
        op=op.op,
        kind=op.kind,
        step=op.step,
        storage="none",
        rows=0,
        columns=0,
        tokens=0,
        size=0,
        nnz=0,
        macs=op.operations,
        cycles=cycles,
        limits=limits,
        busy_cycles=busy[0],
        mean_busy_cycles=busy[1],
        utilization=utilization,
        imbalance=1.0,
        wavelets=0,
        fabric_bytes=traffic[0],
        sram_bytes=traffic[1],
        edge_index_bytes=0.0,
        edge_value_bytes=traffic[2],
        busy_energy_j=energy[0],
        idle_energy_j=energy[1],
        edge_energy_j=energy[2],
    )
