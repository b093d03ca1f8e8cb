"""What a simulation returns: its layers and totals, and the JSON document of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sift_onnx.backends.dataflow.cycles.layer_result import BOUNDS, LayerResult
from sift_onnx.backends.dataflow.execution.outputs import Executed
from sift_onnx.backends.dataflow.machines.machine import GridMachine, Machine
from sift_onnx.backends.dataflow.simulation.band import Speedup, speedups_of
from sift_onnx.backends.dataflow.simulation.phases import Decoded, utilization_of
from sift_onnx.records.simulate import (
    AssumedEnergy,
    MachineReport,
    Parameter,
    SimulatedTotals,
    SimulationReport,
    Uncosted,
)

__all__ = ["Simulation"]


@dataclass(frozen=True, repr=False)
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
        decoded: the prompt and the steps after it, where tokens were generated; ``layers`` are the sums of both.
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
    decoded: Decoded | None = None

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
        return utilization_of(self.layers, self.machine)

    @property
    def energy_j(self) -> float:
        """Sum over the layers, joules."""
        return sum(layer.energy_j for layer in self.layers)

    def assumed_parameters(self) -> tuple[str, ...]:
        """Names of the machine's values that have no source."""
        return tuple(k for k, p in self.machine.parameters.items() if p.confidence == "assumed")

    def __str__(self) -> str:
        return str(self.report())

    def __repr__(self) -> str:
        return (
            f"Simulation(model={self.model!r}, machine={self.machine.name!r}, batch={self.batch}, "
            f"layers=<{len(self.layers)} entries>, cycles={self.cycles})"
        )

    def _repr_html_(self) -> str | None:
        return self.report()._repr_html_()

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
                **{name: sum(getattr(layer, name) for layer in layers) for name in _SUMMED},
            ),
            speedup=speedups_of(self.vs_dense_wide, self.vs_dense_original),
            energy=AssumedEnergy(assumed=tuple(name for name in self.assumed_parameters() if name in _ENERGY)),
            machine=machine_report(self.machine),
            uncosted=self.uncosted,
            notes=self.notes,
            functional=None if self.executed is None else self.executed.report(),
            decode=None if self.decoded is None else self.decoded.report(self.machine, self.batch),
        )


# Totals that are sums over the layers.
_SUMMED = (
    "macs", "stall_cycles", "wavelets", "fabric_bytes", "sram_bytes", "edge_index_bytes", "edge_value_bytes",
    "busy_energy_j", "idle_energy_j", "edge_energy_j",
)  # fmt: skip
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
