"""What kernels and onnxruntime do per second, as ``benchmarks/kernels/fit_costs.py`` measured it.

The table is ``measured_rates.json``: rates of the kernels for each instruction set and number of threads, and rates of
onnxruntime on the processor that they were measured on. A machine that is not in it gets the nearest entry.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgspec

from sift_onnx.settings.typed import typed

__all__ = ["TABLE", "Entry", "Grid", "Rates", "Table", "rates_of", "read_table"]

TABLE = Path(__file__).with_name("measured_rates.json")
# Floats of a register, by which the nearest instruction set is chosen.
_WIDTHS = {"avx512": 16, "avx2": 8, "neon": 4, "portable": 4}


@dataclass(frozen=True)
class Grid:
    """Amounts per second, in 10**9, by how many positions or bytes there are, and by density.

    Attributes:
        sizes: in ascending order: pixels of an image, rows of a matrix, tokens of a sequence; or bytes.
        densities: of the active weights, in ascending order; 1 alone where zeros are not skipped.
        rates: a row for each of the sizes, in it a rate for each density: GFLOP/s on active weights, or GB/s.
    """

    sizes: tuple[float, ...]
    densities: tuple[float, ...]
    rates: tuple[tuple[float, ...], ...]

    def at(self, size: float, density: float = 1.0) -> float:
        """The rate, linear between points in the logarithms of both; beyond the ends, that of the end."""
        i, x = _between(self.sizes, size)
        j, y = _between(self.densities, density)
        ends = [(1 - y) * row[j] + y * row[min(j + 1, len(row) - 1)] for row in self.rates[i : i + 2]]
        return ends[0] if len(ends) == 1 else (1 - x) * ends[0] + x * ends[1]

    def times(self, factor: float) -> Grid:
        """With all rates multiplied."""
        return replace(self, rates=tuple(tuple(factor * rate for rate in row) for row in self.rates))


def _between(points: Sequence[float], value: float) -> tuple[int, float]:
    """The point at or before ``value``, and how far it is on the way to the next one: 0 to 1."""
    if value <= points[0] or len(points) == 1:
        return 0, 0.0
    if value >= points[-1]:
        return len(points) - 2, 1.0
    i = bisect.bisect_right(points, value) - 1
    return i, math.log(value / points[i]) / math.log(points[i + 1] / points[i])


@dataclass(frozen=True)
class Entry:
    """Rates of the kernels, or of onnxruntime.

    Attributes:
        isa: instruction set of the kernels; for onnxruntime, the best one of the processor.
        threads: that all rates are of.
        peak_gflops: multiply-adds whose operands stay in registers, twice, with this instruction set.
        flops: rates of layers with weights and of attention, by kind; see ``costs``.
        bytes: rates of what other operators read and write, by kind.
        step_seconds: that each operator costs besides.
        call_seconds: of a region, or of a session's run, where nothing else runs in between.
        turn_seconds: the same where regions and sessions take turns: threads are asleep when theirs begins.
        quantized: how many times as much layers of int8 do per second as those of floats, on quads that are live.
    """

    isa: str
    threads: int
    peak_gflops: float
    flops: Mapping[str, Grid]
    bytes: Mapping[str, Grid]
    step_seconds: float
    call_seconds: float
    turn_seconds: float
    quantized: float = 1.0

    def times(self, factor: float) -> Entry:
        """As if the processor did ``factor`` times as much per second within an operator."""
        return replace(
            self,
            peak_gflops=factor * self.peak_gflops,
            flops={kind: grid.times(factor) for kind, grid in self.flops.items()},
            bytes={kind: grid.times(factor) for kind, grid in self.bytes.items()},
        )


@dataclass(frozen=True)
class Table:
    """The file.

    Attributes:
        processor: that was measured.
        onnxruntime_version: that was measured.
        date: of the measurement, ``YYYY-MM-DD``.
        kernels: entries of the kernels.
        onnxruntime: entries of onnxruntime.
    """

    processor: str
    onnxruntime_version: str
    date: str
    kernels: tuple[Entry, ...]
    onnxruntime: tuple[Entry, ...]


@dataclass(frozen=True)
class Rates:
    """Both sides on one machine."""

    kernels: Entry
    onnxruntime: Entry


@cache
def rates_of(isa: str, threads: int, processor_isa: str) -> Rates:
    """What is known of the nearest machine.

    Args:
        isa: that the kernels run with.
        threads: of both sides.
        processor_isa: the best one of the processor, which onnxruntime runs with whatever the kernels do.
    """
    table = read_table()
    kernels = _nearest(table.kernels, isa, threads)
    onnxruntime = _nearest(table.onnxruntime, processor_isa, threads)
    if onnxruntime.isa != processor_isa:
        # A processor of other registers: onnxruntime is taken to reach the same share of what they could do.
        own = _nearest(table.kernels, processor_isa, onnxruntime.threads)
        onnxruntime = onnxruntime.times(own.peak_gflops / onnxruntime.peak_gflops)
    return Rates(*(_on_threads(entry, threads) for entry in (kernels, onnxruntime)))


@cache
def read_table() -> Table:
    """The file, read once."""
    return typed(msgspec.json.decode(TABLE.read_bytes()), Table)


def _nearest(entries: Sequence[Entry], isa: str, threads: int) -> Entry:
    def distance(entry: Entry) -> tuple[bool, float, float]:
        width = abs(math.log2(_WIDTHS[entry.isa] / _WIDTHS[isa]))
        return entry.isa != isa, width, abs(math.log2(entry.threads / threads))

    return min(entries, key=distance)


def _on_threads(entry: Entry, threads: int) -> Entry:
    return entry if entry.threads == threads else replace(entry.times(threads / entry.threads), threads=threads)
