"""Cycles of work without weights: spread evenly over all cores, bound by the resource that it needs most.

The spread is assumed to be perfect. What a weight-streaming machine does with attention is not published; its share of
the total is a few percent in the models of this project, and the report lists it separately.
"""

from __future__ import annotations

import math

from sift_onnx.backends.dataflow.cycles.layer_result import Bound, LayerResult
from sift_onnx.backends.dataflow.machines.machine import PICOJOULE, GridMachine, Machine
from sift_onnx.backends.dataflow.workloads.workload import Subject, WeightlessOp

__all__ = ["simulate_weightless"]


def simulate_weightless(op: WeightlessOp, machine: Machine) -> LayerResult:
    """Cycles, traffic and energy of ``op``; on a machine without a grid, of its operations at peak."""
    subject = Subject(
        name=op.node, node=op.node, op=op.op, kind=op.kind, step=op.step, storage="none", macs=op.operations
    )
    if isinstance(machine, GridMachine):
        return _on_grid(op, subject, machine)
    operations = max(op.operations, 1)
    cycles = max(1, math.ceil(operations / machine.peak_macs_per_cycle))
    return LayerResult(
        **subject,
        cycles=cycles,
        limits={"compute": float(cycles)},
        busy_cycles=float(cycles),
        mean_busy_cycles=float(cycles),
        utilization=operations / (cycles * machine.peak_macs_per_cycle),
        sram_bytes=float((op.elements_in + op.elements_out) * machine.value_bytes),
        busy_energy_j=operations * machine.mac_pj * PICOJOULE,
    )


def _on_grid(op: WeightlessOp, subject: Subject, machine: GridMachine) -> LayerResult:
    cores = machine.cores
    steps = math.ceil(math.ceil(op.operations / cores) / machine.simd_lanes)
    compute = steps * machine.cycles_per_vector
    moved = (op.elements_in + op.elements_out) * machine.value_bytes
    if op.kind == "product":
        # Each multiply-accumulate reads an operand, and reads and writes a partial sum, as in an AXPY.
        moved = op.operations * (machine.value_bytes + 2 * machine.partial_sum_bytes)
    sram = math.ceil(moved / cores) / machine.sram_port_bytes
    reduce = fabric = 0.0
    if machine.columns > 1 and op.ring_passes:
        # Sums of a token come together along a row of cores, and their result goes back.
        per_core = -(-max(op.elements_in, 1) // cores)
        words = math.ceil(per_core * machine.partial_sum_bytes / machine.link_bytes)
        reduce = op.ring_passes * (2 * (machine.columns - 1) * machine.hop_cycles + words)
        fabric = float(op.ring_passes * (machine.columns - 1) * machine.rows * machine.link_bytes)
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
    used = demands | {
        "compute": op.operations * machine.cycles_per_vector / (cores * machine.simd_lanes),
        "sram": moved / (cores * machine.sram_port_bytes),
    }
    share = max(used.values()) / cycles
    busy = max(compute, sram)
    core_cycle_j = machine.core_cycle_pj * PICOJOULE
    return LayerResult(
        **subject,
        cycles=cycles,
        limits={bound: float(cycles)},
        busy_cycles=min(busy, cycles),
        mean_busy_cycles=min(busy, cycles),
        # An operator that does nothing measurable still takes its cycle.
        utilization=share if share > 0 else 1.0 / (cycles * cores),
        fabric_bytes=fabric,
        sram_bytes=float(moved),
        edge_value_bytes=edge,
        busy_energy_j=busy * cores * core_cycle_j,
        idle_energy_j=max(0.0, cycles - busy) * cores * core_cycle_j * machine.idle_fraction,
        edge_energy_j=edge * machine.edge_byte_pj * PICOJOULE,
    )
