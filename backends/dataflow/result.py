"""What a simulation returns: figures per layer and in total, and the JSON document of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.dataflow.event_log import EventLog
from sift_onnx.backends.dataflow.machine import GridMachine, Machine
from sift_onnx.backends.dataflow.outputs import Executed
from sift_onnx.backends.dataflow.workload import Step
from sift_onnx.records.simulate import (
    AssumedEnergy,
    Bands,
    MachineReport,
    Parameter,
    SimulatedLayer,
    SimulatedTotals,
    SimulationReport,
    Speedups,
    Uncosted,
)

__all__ = ["BOUNDS", "Bound", "LayerResult", "Simulation", "Speedup"]

Bound = Literal["compute", "reduce", "stream", "sram"]
BOUNDS: tuple[Bound, ...] = ("compute", "reduce", "stream", "sram")


@dataclass(frozen=True)
class LayerResult:
    """One node in one step of training.

    Attributes:
        name: of the weight; of the node where there is none.
        node: name of the node.
        op: its operator.
        kind: as in the workload.
        step: of training, or ``forward``.
        storage: how the weight is streamed: ``csr``, ``dense``, or ``none`` where there is no weight.
        rows: of the matrix.
        columns: of the matrix.
        tokens: columns of the activations.
        size: weights of the matrix, active or not.
        nnz: non-zeros that are streamed.
        macs: multiply-accumulates that are executed; operations of a SIMD lane where there is no weight.
        cycles: until the last result is there.
        limits: the cycles, shared out among what bound them; they add up to ``cycles``.
        busy_cycles: of the busiest core.
        mean_busy_cycles: over all cores of the machine.
        utilization: of the machine's peak in what the layer needs, in (0, 1].
        imbalance: busy cycles of the busiest grid column over the mean of those in use.
        wavelets: weights and partial sums that are sent.
        fabric_bytes: bytes times links that they pass.
        sram_bytes: read and written, over all cores.
        edge_index_bytes: over the wafer's edge, of indices.
        edge_value_bytes: over the wafer's edge, of values.
        busy_energy_j: of cores that compute, joules.
        idle_energy_j: of cores that wait.
        edge_energy_j: of bytes over the wafer's edge.
        notes: what was split or assumed for this layer.
        column_busy: busy cycles per grid column in grid rows with the most tokens, ``[columns]``; empty if none.
        column_wavelets: weights that each core of a grid column gets, ``[columns]``.
        row_share: ``(grid rows with the most tokens, grid rows with one less, their busy cycles over the former's)``.
        events: what the event-driven model saw; None of the fast one.
    """

    name: str
    node: str
    op: str
    kind: str
    step: Step
    storage: str
    rows: int
    columns: int
    tokens: int
    size: int
    nnz: int
    macs: int
    cycles: int
    limits: Mapping[Bound, float]
    busy_cycles: float
    mean_busy_cycles: float
    utilization: float
    imbalance: float
    wavelets: int
    fabric_bytes: float
    sram_bytes: float
    edge_index_bytes: float
    edge_value_bytes: float
    busy_energy_j: float
    idle_energy_j: float
    edge_energy_j: float
    notes: tuple[str, ...] = ()
    column_busy: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), repr=False, compare=False)
    column_wavelets: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(0, np.int64), repr=False, compare=False
    )
    row_share: tuple[int, int, float] = (0, 0, 1.0)
    events: EventLog | None = field(default=None, repr=False, compare=False)

    @property
    def bound(self) -> Bound:
        """What took most of the cycles."""
        return max(BOUNDS, key=lambda name: self.limits.get(name, 0.0))

    @property
    def stall_cycles(self) -> float:
        """Cycles in which the busiest core waits."""
        return max(0.0, self.cycles - self.busy_cycles)

    @property
    def energy_j(self) -> float:
        """Sum of the parts, joules."""
        return self.busy_energy_j + self.idle_energy_j + self.edge_energy_j

    @property
    def edge_bytes(self) -> float:
        """Over the wafer's edge, joined."""
        return self.edge_index_bytes + self.edge_value_bytes

    def report(self) -> SimulatedLayer:
        """One of ``layers`` of what ``simulate`` reports."""
        return SimulatedLayer(
            name=self.name,
            node=self.node,
            op=self.op,
            kind=self.kind,
            step=self.step,
            storage=self.storage,
            rows=self.rows,
            columns=self.columns,
            tokens=self.tokens,
            nnz=self.nnz,
            macs=self.macs,
            cycles=self.cycles,
            bound=self.bound,
            utilization=self.utilization,
            imbalance=self.imbalance,
            stall_cycles=self.stall_cycles,
            wavelets=self.wavelets,
            fabric_bytes=self.fabric_bytes,
            sram_bytes=self.sram_bytes,
            edge_index_bytes=self.edge_index_bytes,
            edge_value_bytes=self.edge_value_bytes,
            energy_j=self.energy_j,
            size=self.size,
            limits={name: self.limits.get(name, 0.0) for name in BOUNDS},
            energy_parts_j={"busy": self.busy_energy_j, "idle": self.idle_energy_j, "edge": self.edge_energy_j},
            notes=self.notes,
        )


@dataclass(frozen=True)
class Speedup:
    """How much faster than something: a number, and a band where parameters of the machine are not known."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Simulation:
    """A model on a machine.

    Attributes:
        model: name of the model.
        machine: that it ran on.
        batch: items that were processed together.
        training: whether the backward pass and mask updates are included.
        weights: ``streamed`` over the wafer's edge at every use, or ``resident`` in SRAM.
        fidelity: ``functional``, ``fast`` or ``event``.
        layers: in the order in which they are executed.
        uncosted: nodes that are missing from the totals.
        notes: what was assumed for the whole run.
        vs_dense_wide: against the same model with no zeros, on the same machine.
        vs_dense_original: against the original model, if one was given, on the same machine.
        executed: what the functional fidelity returned.
    """

    model: str
    machine: Machine
    batch: int
    training: bool
    weights: str
    fidelity: str
    layers: tuple[LayerResult, ...]
    uncosted: tuple[Uncosted, ...] = ()
    notes: tuple[str, ...] = ()
    vs_dense_wide: Speedup | None = None
    vs_dense_original: Speedup | None = None
    executed: Executed | None = None

    @property
    def cycles(self) -> int:
        """Sum over the layers, which run one after another."""
        return sum(layer.cycles for layer in self.layers)

    @property
    def seconds(self) -> float:
        """At the machine's clock."""
        return self.cycles / self.machine.clock_hz

    @property
    def utilization(self) -> float:
        """Of all SIMD lanes over all cycles; of what is moved, where nothing is computed."""
        cycles, operations = max(self.cycles, 1), sum(layer.macs for layer in self.layers)
        if not operations:
            return sum(layer.utilization * layer.cycles for layer in self.layers) / cycles
        return operations / (cycles * self.machine.peak_macs_per_cycle)

    @property
    def energy_j(self) -> float:
        """Sum over the layers, joules."""
        return sum(layer.energy_j for layer in self.layers)

    def assumed_parameters(self) -> tuple[str, ...]:
        """Names of the machine's values that have no source."""
        return tuple(k for k, p in self.machine.parameters.items() if p.confidence == "assumed")

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of ``sift-onnx simulate``."""
        return self.report().to_dict()

    def report(self) -> SimulationReport:
        """What ``simulate`` reports."""
        layers = self.layers
        return SimulationReport(
            model=self.model,
            preset=self.machine.name,
            batch=self.batch,
            training=self.training,
            weights=self.weights,
            fidelity=self.fidelity,
            layers=tuple(layer.report() for layer in layers),
            totals=SimulatedTotals(
                cycles=self.cycles,
                seconds=self.seconds,
                utilization=self.utilization,
                energy_j=self.energy_j,
                weight_macs=sum(layer.macs for layer in layers if layer.storage != "none"),
                limits={name: sum(layer.limits.get(name, 0.0) for layer in layers) for name in BOUNDS},
                macs=sum(layer.macs for layer in layers),
                stall_cycles=sum(layer.stall_cycles for layer in layers),
                wavelets=sum(layer.wavelets for layer in layers),
                fabric_bytes=sum(layer.fabric_bytes for layer in layers),
                sram_bytes=sum(layer.sram_bytes for layer in layers),
                edge_index_bytes=sum(layer.edge_index_bytes for layer in layers),
                edge_value_bytes=sum(layer.edge_value_bytes for layer in layers),
                busy_energy_j=sum(layer.busy_energy_j for layer in layers),
                idle_energy_j=sum(layer.idle_energy_j for layer in layers),
                edge_energy_j=sum(layer.edge_energy_j for layer in layers),
            ),
            speedup=Speedups(
                vs_dense_wide=_value(self.vs_dense_wide),
                vs_dense_original=_value(self.vs_dense_original),
                bands=Bands(vs_dense_wide=_band(self.vs_dense_wide), vs_dense_original=_band(self.vs_dense_original)),
            ),
            energy=AssumedEnergy(assumed=tuple(name for name in self.assumed_parameters() if name in _ENERGY)),
            machine=machine_report(self.machine),
            uncosted=self.uncosted,
            notes=self.notes,
            functional=None if self.executed is None else self.executed.report(),
        )


_ENERGY = ("core_cycle_pj", "idle_fraction", "edge_byte_pj", "mac_pj")


def machine_report(machine: Machine) -> MachineReport:
    """A machine with its sources; what is infinite is None."""
    return MachineReport(
        name=machine.name,
        summary=machine.summary,
        clock_hz=machine.clock_hz,
        peak_macs_per_cycle=machine.peak_macs_per_cycle,
        grid=(machine.columns, machine.rows) if isinstance(machine, GridMachine) else None,
        parameters={
            name: Parameter(
                value=_finite(p.value),
                low=_finite(p.low),
                high=_finite(p.high),
                unit=p.unit,
                source=p.source,
                confidence=p.confidence,
            )
            for name, p in machine.parameters.items()
        },
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _value(speedup: Speedup | None) -> float | None:
    return None if speedup is None else speedup.value


def _band(speedup: Speedup | None) -> tuple[float, float] | None:
    return None if speedup is None else (speedup.low, speedup.high)
