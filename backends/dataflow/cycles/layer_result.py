"""What a cycle model returns for one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.dataflow.cycles.event_log import EventLog
from sift_onnx.backends.dataflow.workloads.workload import Step
from sift_onnx.records.simulate import SimulatedLayer

__all__ = ["BOUNDS", "Bound", "LayerResult"]

Bound = Literal["compute", "reduce", "stream", "sram"]
BOUNDS: tuple[Bound, ...] = ("compute", "reduce", "stream", "sram")


@dataclass(frozen=True, kw_only=True)
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
    rows: int = 0
    columns: int = 0
    tokens: int = 0
    size: int = 0
    nnz: int = 0
    macs: int
    cycles: int
    limits: Mapping[Bound, float]
    busy_cycles: float
    mean_busy_cycles: float
    utilization: float
    imbalance: float = 1.0
    wavelets: int = 0
    fabric_bytes: float = 0.0
    sram_bytes: float = 0.0
    edge_index_bytes: float = 0.0
    edge_value_bytes: float = 0.0
    busy_energy_j: float = 0.0
    idle_energy_j: float = 0.0
    edge_energy_j: float = 0.0
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
        alike = set(SimulatedLayer.__struct_fields__) - {"limits", "energy_parts_j"}
        return SimulatedLayer(
            **{name: getattr(self, name) for name in alike},
            limits={name: self.limits.get(name, 0.0) for name in BOUNDS},
            energy_parts_j={"busy": self.busy_energy_j, "idle": self.idle_energy_j, "edge": self.edge_energy_j},
        )
