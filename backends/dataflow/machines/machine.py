"""Machines: the parameters of the cycle models.

Every value of a file comes with its unit, its source and a confidence, so that a report can say what a result rests on.
An unpublished value may have a range; reports then give a band instead of a number.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from msgspec import Meta

from sift_onnx.errors import UsageError

__all__ = ["PICOJOULE", "ArrayMachine", "GridMachine", "IdealMachine", "Machine", "Parameter", "with_grid"]

PICOJOULE = 1e-12

# What a value may be: files are checked against these types.
Count = Annotated[int, Meta(gt=0)]
Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max, description="a finite number above 0")]
PositiveOrInfinite = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0, le=sys.float_info.max, description="a finite number, 0 or more")]


@dataclass(frozen=True)
class Parameter:
    """One value of a machine.

    Attributes:
        value: the number that is used.
        confidence: ``H``, ``M``, ``L``, or ``assumed`` where there is no source.
        source: a document, or why it is assumed.
        unit: of the value.
        low: lower end of what is plausible; ``value`` by default, for what is known.
        high: upper end, as ``low``.

    Raises:
        UsageError: there is no source, or the value is outside of its range.
    """

    value: float
    confidence: Literal["H", "M", "L", "assumed"]
    source: str = ""
    unit: str = ""
    low: float = math.nan
    high: float = math.nan

    def __post_init__(self) -> None:
        for end in ("low", "high"):
            if math.isnan(getattr(self, end)):
                object.__setattr__(self, end, self.value)
        if math.isnan(self.value):
            raise UsageError("value is nan; write a number")
        if not self.source:
            raise UsageError("source is missing; name the document, or say why it is assumed")
        if not self.low <= self.value <= self.high:
            raise UsageError(f"{self.value:g} lies outside of its range, {self.low:g} to {self.high:g}")


@dataclass(frozen=True)
class _Named:
    """What all kinds of machine have.

    Attributes:
        name: of the preset, or of the file.
        summary: one line.
        parameters: where each value comes from, by name.
    """

    name: str
    summary: str
    parameters: Mapping[str, Parameter] = field(repr=False)


@dataclass(frozen=True)
class GridMachine(_Named):
    """A grid of cores that weights are streamed over, column by column.

    Attributes:
        clock_hz: cycles per second.
        columns: cores along x, over which the input features of a layer are spread.
        rows: cores along y, over which tokens (batch times positions) are spread.
        simd_lanes: multiply-accumulates of one vector step.
        cycles_per_vector: cycles of one vector step.
        axpy_startup: cycles that each non-zero of a sparse weight costs besides its vector steps.
        dense_startup: the same for a weight that is streamed densely, in order and without indices.
        row_overhead: cycles that each core spends on each output row.
        window_rows: output rows that may be in flight at once; ``inf`` lets columns run apart without limit.
        value_bytes: bytes of an activation.
        partial_sum_bytes: bytes of a partial sum on its way along a row of cores.
        sram_bytes: memory of a core.
        sram_reserved_bytes: what code, queues and stack take of it.
        sram_port_bytes: bytes that a core reads and writes per cycle.
        link_bytes: bytes that a link between neighbours carries per cycle and direction.
        hop_cycles: cycles from a router to the next.
        queue_words: wavelets that an input queue holds.
        index_bits: of the index in a wavelet that carries a non-zero.
        edge_bytes_per_cycle: bytes that enter the wafer, or leave it, per cycle.
        edge_index_bytes: bytes of an index at the wafer's edge.
        edge_value_bytes: bytes of a weight at the wafer's edge.
        core_cycle_pj: energy of a core that computes, picojoules per cycle, all included.
        idle_fraction: share of it that a waiting core takes.
        edge_byte_pj: energy of a byte over the wafer's edge, picojoules.
    """

    clock_hz: Positive
    columns: Count
    rows: Count
    simd_lanes: Count
    cycles_per_vector: Positive
    axpy_startup: NonNegative
    dense_startup: NonNegative
    row_overhead: NonNegative
    window_rows: PositiveOrInfinite
    value_bytes: Count
    partial_sum_bytes: Count
    sram_bytes: PositiveOrInfinite
    sram_reserved_bytes: NonNegative
    sram_port_bytes: PositiveOrInfinite
    link_bytes: PositiveOrInfinite
    hop_cycles: NonNegative
    queue_words: Count
    index_bits: Count
    edge_bytes_per_cycle: PositiveOrInfinite
    edge_index_bytes: NonNegative
    edge_value_bytes: Positive
    core_cycle_pj: NonNegative
    idle_fraction: NonNegative
    edge_byte_pj: NonNegative

    @property
    def cores(self) -> int:
        """Cores of the grid."""
        return self.columns * self.rows

    @property
    def peak_macs_per_cycle(self) -> float:
        """Multiply-accumulates per cycle with every core busy."""
        return self.cores * self.simd_lanes / self.cycles_per_vector


@dataclass(frozen=True)
class ArrayMachine(_Named):
    """A weight-stationary systolic array, as a contrast: it skips an input feature only if no output uses it.

    Attributes:
        clock_hz: cycles per second.
        array_rows: processing elements along the summed axis.
        array_columns: processing elements along the output features.
        value_bytes: bytes of a weight and of an activation.
        mac_pj: energy of a multiply-accumulate, picojoules.
    """

    clock_hz: Positive
    array_rows: Count
    array_columns: Count
    value_bytes: Count
    mac_pj: NonNegative

    @property
    def peak_macs_per_cycle(self) -> float:
        """Multiply-accumulates per cycle with every element busy."""
        return float(self.array_rows * self.array_columns)


@dataclass(frozen=True)
class IdealMachine(_Named):
    """Hardware on which FLOPs translate directly to time (paper, section 4): every non-zero costs the same, no more.

    Attributes:
        clock_hz: cycles per second.
        macs_per_cycle: multiply-accumulates per cycle.
        value_bytes: bytes of a weight and of an activation.
        mac_pj: energy of a multiply-accumulate, picojoules.
    """

    clock_hz: Positive
    macs_per_cycle: Positive
    value_bytes: Count
    mac_pj: NonNegative

    @property
    def peak_macs_per_cycle(self) -> float:
        """As given."""
        return self.macs_per_cycle


Machine = GridMachine | ArrayMachine | IdealMachine


def with_grid(machine: GridMachine, columns: int, rows: int) -> GridMachine:
    """``machine`` with another number of cores, all else the same.

    Raises:
        UsageError: a number below 1.
    """
    if columns < 1 or rows < 1:
        raise UsageError(f"a grid of {columns}x{rows} cores; both must be at least 1")
    said = {
        key: Parameter(size, "H", "given by the caller", "cores")
        for key, size in (("columns", columns), ("rows", rows))
    }
    return replace(
        machine,
        name=f"{machine.name}, {columns}x{rows}",
        columns=columns,
        rows=rows,
        parameters={**machine.parameters, **said},
    )
