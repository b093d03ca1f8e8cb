"""What ``simulate`` reports."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from sift_onnx.records.record import SCHEMA, Amount, Count, Positive, Real, Record, Share

__all__ = [
    "AssumedEnergy",
    "Bands",
    "DecodePhase",
    "Execution",
    "GridMap",
    "MachineReport",
    "OutputDifference",
    "Parameter",
    "PublishedSpeedup",
    "SimulatedDecode",
    "SimulatedLayer",
    "SimulatedTotals",
    "SimulationReport",
    "Speedups",
    "SweepPoint",
    "Uncosted",
]

_Side = Annotated[int, Meta(ge=1, le=2**20)]


class SimulatedLayer(Record, frozen=True, kw_only=True):
    """One node in one step of training; see :class:`sift_onnx.backends.dataflow.cycles.layer_result.LayerResult`."""

    name: str
    node: str = ""
    op: str
    kind: str = ""
    step: str
    storage: str
    rows: Count = 0
    columns: Count = 0
    tokens: Count = 0
    nnz: Count
    macs: Count
    cycles: Count
    bound: str
    utilization: Amount
    imbalance: Amount
    stall_cycles: Amount = 0.0
    wavelets: Count = 0
    fabric_bytes: Amount
    sram_bytes: Amount
    edge_index_bytes: Amount
    edge_value_bytes: Amount
    energy_j: Amount
    size: Count
    limits: dict[str, Amount]
    energy_parts_j: dict[str, Amount] | None = None
    notes: tuple[str, ...]


class SimulatedTotals(Record, frozen=True, kw_only=True):
    """Of the whole run; ``limits`` shares the cycles out among what bound them."""

    cycles: Count
    seconds: Positive
    utilization: Amount
    energy_j: Amount
    weight_macs: Count
    limits: dict[str, Amount] | None = None
    macs: Count = 0
    stall_cycles: Amount = 0.0
    wavelets: Count = 0
    fabric_bytes: Amount = 0.0
    sram_bytes: Amount = 0.0
    edge_index_bytes: Amount
    edge_value_bytes: Amount
    busy_energy_j: Amount = 0.0
    idle_energy_j: Amount = 0.0
    edge_energy_j: Amount = 0.0


class Bands(Record, frozen=True, kw_only=True):
    """Lower and upper end of each speed-up."""

    vs_dense_wide: tuple[Positive, Positive] | None
    vs_dense_original: tuple[Positive, Positive] | None


class Speedups(Record, frozen=True, kw_only=True):
    """Against the same model with no zeros, and against the original, on the same machine."""

    vs_dense_wide: Positive | None
    vs_dense_original: Positive | None
    bands: Bands


class AssumedEnergy(Record, frozen=True, kw_only=True):
    """Names of values that energy rests on and that have no source."""

    assumed: tuple[str, ...]


class Parameter(Record, frozen=True, kw_only=True):
    """A value of a machine, its range and its source; None is infinite."""

    value: Real | None
    low: Real | None
    high: Real | None
    unit: str
    source: str
    confidence: str


class MachineReport(Record, frozen=True, kw_only=True):
    """A machine with the sources of its values."""

    name: str = ""
    summary: str
    clock_hz: Positive
    peak_macs_per_cycle: Positive
    grid: tuple[Count, Count] | UnsetType | None = UNSET
    parameters: dict[str, Parameter]


class Uncosted(Record, frozen=True):
    """A node that no cost is known of, and why."""

    node: str
    op: str
    reason: str


class PublishedSpeedup(Record, frozen=True, kw_only=True):
    """A speed-up that was published, to be shown with the simulated one.

    Attributes:
        wide: sparsity of Sparse Wide.
        preset: of the machine.
        speedup: over the same model executed dense.
        source: of it.
        remark: what it must not be taken for.
    """

    wide: Real | None = None
    preset: str | None = None
    speedup: Amount
    source: str
    remark: str


class OutputDifference(Record, frozen=True):
    """How far an output is from onnxruntime's.

    Attributes:
        name: of the output.
        shape: of it.
        max_abs_error: largest absolute difference; None where a value is not finite.
        max_abs: largest absolute value of the reference; None as above.
    """

    name: str
    shape: tuple[Count, ...]
    max_abs_error: Amount | None
    max_abs: Amount | None


class Execution(Record, frozen=True, kw_only=True):
    """A run of the functional model on random inputs, next to onnxruntime's on the same.

    Attributes:
        arithmetic: ``float32``, or ``float16`` in the order of arrival.
        seed: of the inputs.
        inputs: shapes by name.
        nodes: how many run as ``csr``, and how many in ``onnxruntime``.
        outputs: against onnxruntime's, which are of the model's own precision.
    """

    arithmetic: str
    seed: Real
    inputs: dict[str, tuple[Count, ...]]
    nodes: dict[str, Count]
    outputs: tuple[OutputDifference, ...]


class DecodePhase(Record, frozen=True, kw_only=True):
    """A part of the generation of tokens.

    Attributes:
        name: ``prefill``, the run on the prompt; ``step``, the mean of those after it; ``whole``, all of them together.
        cycles: of all sequences together.
        seconds: at the machine's clock.
        utilization: of all SIMD lanes.
        energy_j: joules.
        weight_bytes: of the weights that are multiplied by, with their indices.
        cache_read_bytes: keys and values that are attended to, the new ones included.
        cache_written_bytes: keys and values of new tokens.
        limits: the cycles, shared out among what bound them.
        speedup: of this part.
    """

    name: str
    cycles: Amount
    seconds: Positive
    utilization: Amount
    energy_j: Amount
    weight_bytes: Amount
    cache_read_bytes: Amount
    cache_written_bytes: Amount
    limits: dict[str, Amount]
    speedup: Speedups


class SimulatedDecode(Record, frozen=True, kw_only=True):
    """Tokens that a decoder generates on the machine.

    Attributes:
        prompt: tokens of each prompt.
        tokens: new ones of each sequence, the first of which the run on the prompt gives.
        steps: runs after that one.
        first_seconds: until the first token.
        tokens_per_second: of all sequences, after the first token.
        cache_bytes: keys and values in the end, which stay in the machine.
        phases: the run on the prompt, the mean step, and everything.
    """

    prompt: Count
    tokens: Count
    steps: Count
    first_seconds: Positive
    tokens_per_second: Positive
    cache_bytes: Amount
    phases: tuple[DecodePhase, ...]


class GridMap(Record, frozen=True, kw_only=True):
    """A quantity over the cores: ``shares`` are bytes in base 64, row by row, 255 for ``largest``."""

    title: str
    columns: _Side
    rows: _Side
    shape: tuple[_Side, _Side]
    largest: Amount
    shares: str


class SweepPoint(Record, frozen=True, kw_only=True):
    """The speed-up at a sparsity, and its band."""

    sparsity: Share
    value: Positive
    low: Positive
    high: Positive


class SimulationReport(Record, frozen=True, kw_only=True):
    """A model on a machine; see :class:`sift_onnx.backends.dataflow.simulation.result.Simulation`.

    With ``decode``, layers, totals and speed-ups are those of the prompt and all steps together.
    """

    schema: int = SCHEMA
    model: str
    preset: str
    batch: Count
    training: bool
    weights: str
    fidelity: str
    layers: tuple[SimulatedLayer, ...]
    totals: SimulatedTotals
    speedup: Speedups
    energy: AssumedEnergy
    machine: MachineReport
    uncosted: tuple[Uncosted, ...]
    notes: tuple[str, ...]
    functional: Execution | None = None
    decode: SimulatedDecode | None = None
    maps: tuple[GridMap, ...] | None = None
    nominal: dict[str, tuple[Count, ...]] | None = None
    assumed: tuple[str, ...] | None = None
    published: tuple[PublishedSpeedup, ...] | None = None
    trace: dict[str, Count] | None = None
    sweep: tuple[SweepPoint, ...] | None = None
