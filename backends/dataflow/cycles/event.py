"""The event-driven model: when every wavelet moves, on grids up to 16x16. It exists to validate the fast one.

A wavelet passes the routers of its grid column one hop at a time and is copied into the input queue of every core on
its way; a router passes it on only when that queue and the next router have room. A core takes wavelets from its queue
one by one, each for the length of an AXPY. Once a row is complete in a core, its partial sums go around the row of
cores, word by word over one link per cycle, to the core that owns the output feature; the queues between cores are
bounded as well. A core has partial sums of ``W`` rows, and of one more that is on its way out.

All of these are conditions of the form "not before": the time of an event is the latest of a few earlier ones. Visiting
rows, wavelets and cores in order reaches each event after everything that it waits for, so that no event queue is
needed and times are exact (a timed event graph, evaluated in max-plus arithmetic).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.dataflow.cycles.event_log import EventLog
from sift_onnx.backends.dataflow.cycles.fast import RowCosts, axpy_cycles, layer_of, row_costs
from sift_onnx.backends.dataflow.cycles.layer_result import Bound, LayerResult
from sift_onnx.backends.dataflow.cycles.mapping import Mapping, map_product
from sift_onnx.backends.dataflow.machines.machine import GridMachine
from sift_onnx.backends.dataflow.workloads.pattern import coordinates
from sift_onnx.backends.dataflow.workloads.workload import SparseProduct
from sift_onnx.errors import UnsupportedError

__all__ = ["GRID_LIMIT", "simulate_product_by_events"]

GRID_LIMIT = 16
# Wavelets times cores that they reach, and words times links; about a microsecond each.
_STEP_LIMIT = 20_000_000


def simulate_product_by_events(
    product: SparseProduct, machine: GridMachine, *, resident: bool = False, resident_bytes: float = 0.0
) -> LayerResult:
    """Cycles, traffic and energy of one product, wavelet by wavelet.

    The gradient of weights is the forward product run backwards in time: broadcasts for reductions, scalars that leave
    for wavelets that arrive. The length of such a schedule is the same in both directions.

    Args:
        product: what is multiplied.
        machine: the grid, up to 16x16.
        resident: weights stay in SRAM and do not pass the wafer's edge.
        resident_bytes: what all weights together take of each core.

    Raises:
        UnsupportedError: the grid or the layer is too large, or the layer does not fit in SRAM.
    """
    if max(machine.columns, machine.rows) > GRID_LIMIT:
        raise UnsupportedError(
            f"fidelity 'event' takes grids up to {GRID_LIMIT}x{GRID_LIMIT}, {machine.name} has "
            f"{machine.columns}x{machine.rows}; choose `fidelity='fast'`, or a smaller grid"
        )
    mapping = map_product(product, machine, resident_bytes)
    costs = row_costs(product, machine, mapping, resident)
    matrix = product.pattern.map
    words = matrix.rows * mapping.columns_used * costs.reduce
    steps = int((product.pattern.nnz + words) * mapping.rows_used)
    if steps > _STEP_LIMIT:
        raise UnsupportedError(
            f"{product.name!r} ({product.step}) takes {steps:,} events, fidelity 'event' takes {_STEP_LIMIT:,}; choose "
            "fast, a smaller batch or a smaller grid"
        )
    rows, columns = coordinates(product.pattern)
    shard = mapping.shard[columns]
    log = EventLog(passes=mapping.token_passes * product.sequential)
    for part in range(mapping.parts):
        inside = shard // mapping.columns_used == part
        _Schedule(product, machine, mapping, costs, log).run(rows[inside], shard[inside] % mapping.columns_used)
    per_column = np.bincount(shard % mapping.columns_used, minlength=mapping.columns_used)
    demands: dict[Bound, float] = {
        "sram" if costs.sram_limited else "compute": float(per_column.max()) * costs.axpy,
        "reduce": float(matrix.rows * costs.reduce),
        "stream": len(columns) * (costs.index_bytes + costs.value_bytes) / machine.edge_bytes_per_cycle,
    }
    most: Bound = max(demands, key=lambda name: demands[name])
    layer = layer_of(product, machine, mapping, costs, {most: log.cycles * log.passes}, per_column)
    return replace(layer, events=log)


class _Core:
    """One core: its router, queue and clock."""

    def __init__(self, axpy: float, words: int, depth: int) -> None:
        self.axpy = axpy
        self.words = words  # of a row's partial sums
        # Of the last wavelets: when the router passed them on, and when they left the queue.
        self.passed = [0.0] * depth
        self.taken = [0.0] * depth
        self.free = 0.0  # when the next AXPY may begin
        self.began = self.ended = 0.0  # the last uninterrupted run of AXPYs
        self.done = 0.0  # when the last row was complete
        self.left: list[float] = []  # per row: when all of its partial sums were gone
        self.link_free = 0.0  # of the link to the next core
        self.received: list[float] = []  # per word from the core before: when it left the queue


class _Schedule:
    """The times of all events of one part of a product, beginning when the part before it has ended."""

    def __init__(
        self, product: SparseProduct, machine: GridMachine, mapping: Mapping, costs: RowCosts, log: EventLog
    ) -> None:
        self.machine, self.mapping, self.costs, self.log = machine, mapping, costs, log
        self.rows = product.pattern.map.rows
        self.offset = log.cycles
        self.gradient = product.step == "weight_gradient"
        window = mapping.reduced and math.isfinite(machine.window_rows)
        self.held = int(machine.window_rows) + 1 if window else None
        self.cores = [
            [self._core(product, row) for row in range(mapping.rows_used)] for _ in range(mapping.columns_used)
        ]
        self.sent = [0] * mapping.columns_used

    def _core(self, product: SparseProduct, row: int) -> _Core:
        tokens = self.mapping.tokens_per_core
        if self.mapping.token_passes == 1 and row >= self.mapping.full_rows:
            tokens -= 1
        axpy, _ = axpy_cycles(self.machine, tokens, product.is_sparse)
        word = self.machine.value_bytes if self.gradient else self.machine.partial_sum_bytes
        return _Core(axpy, math.ceil(tokens * word / self.machine.link_bytes), self.machine.queue_words)

    def run(self, rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> None:
        """Visit all events; ``cycles`` of the log become the end of the last one.

        Args:
            rows: of each non-zero, ascending.
            columns: of the grid, of each non-zero.
        """
        if self.gradient:  # backwards in time
            rows, columns = self.rows - 1 - rows[::-1], columns[::-1]
        edges = np.searchsorted(rows, np.arange(self.rows + 1)).tolist()
        order = columns.tolist()
        for row in range(self.rows):
            self._await_room()
            for number in range(edges[row], edges[row + 1]):
                self._send(number, order[number])
            self._complete()
            if self.mapping.reduced:
                for grid_row in range(self.mapping.rows_used):
                    self._reduce(row, grid_row)
        for x, column in enumerate(self.cores):
            for y, core in enumerate(column):
                self._end_run((x, y), core)
                # The last row need not be the last to leave: rows of different owners use different links.
                self.log.cycles = max(self.log.cycles, self.offset + max(core.done, *core.left, 0.0))

    def _await_room(self) -> None:
        """A core starts on a row when there is room for its partial sums."""
        if self.held is None or len(self.cores[0][0].left) < self.held:
            return
        for column in self.cores:
            for core in column:
                core.free = max(core.free, core.left[-self.held])

    def _send(self, number: int, x: int) -> None:
        """One non-zero on its way down grid column ``x``."""
        machine, cores, depth = self.machine, self.cores[x], self.machine.queue_words
        sent_bytes = (number + 1) * (self.costs.index_bytes + self.costs.value_bytes)
        time = float(math.floor(sent_bytes / machine.edge_bytes_per_cycle))
        slot, before = self.sent[x] % depth, (self.sent[x] - 1) % depth
        first, full = self.sent[x] == 0, self.sent[x] >= depth
        for y, core in enumerate(cores):
            if not first:
                time = max(time, core.passed[before] + 1)
            if full:
                # The wavelet that is `depth` ahead has left the queue, and the next router has passed it on.
                time = max(time, core.taken[slot])
                if y + 1 < len(cores):
                    time = max(time, cores[y + 1].passed[slot])
            begin = max(time, core.free)
            waiting = 1 if first else 1 + sum(taken > time for taken in core.taken)
            core.passed[slot], core.taken[slot] = time, begin
            self.log.add_wavelet((x, y), self.offset + time, self.offset + begin, min(waiting, depth))
            self._occupy((x, y), core, begin, core.axpy)
            time += machine.hop_cycles
        self.sent[x] += 1

    def _occupy(self, place: tuple[int, int], core: _Core, begin: float, cycles: float) -> None:
        if begin > core.ended:
            self._end_run(place, core)
            core.began = begin
        core.free = core.ended = begin + cycles

    def _end_run(self, place: tuple[int, int], core: _Core) -> None:
        if core.ended > core.began:
            self.log.add_busy(place, self.offset + core.began, self.offset + core.ended)

    def _complete(self) -> None:
        """The row's last wavelet says so; a core that it sent none waits for the end of the row before."""
        for x, column in enumerate(self.cores):
            for y, core in enumerate(column):
                if self.costs.overhead:
                    self._occupy((x, y), core, core.free, self.costs.overhead)
                core.done = core.free

    def _reduce(self, row: int, y: int) -> None:
        """Partial sums of ``row`` on their way around grid row ``y``, to the core that owns the output feature."""
        count, depth, hop = len(self.cores), self.machine.queue_words, self.machine.hop_cycles
        owner = row * count // self.rows
        places = [(owner + 1 + i) % count for i in range(count)]
        ring = [self.cores[x][y] for x in places]
        # The way back from the last core to the first one takes as many hops, and has a queue at each of them.
        hops = [count - 1 if x == count - 1 else 1 for x in places]
        base = [len(core.received) for core in ring]
        last = [0.0] * count
        for word in range(ring[0].words):
            arrival = 0.0
            for i, core in enumerate(ring):
                time = max(core.done, arrival)
                if i < count - 1:
                    time = max(time, core.link_free)
                    ahead = base[i + 1] + word - depth * hops[i]
                    if ahead >= 0:
                        time = max(time, ring[i + 1].received[ahead])
                    core.link_free = time + 1
                elif word:
                    time = max(time, last[i] + 1)
                if i:
                    core.received.append(time)
                if not word and i < count - 1:
                    self.log.add_words((places[i], y), self.offset + time, core.words)
                arrival = time + hop * hops[i]
                last[i] = time
        for core, time in zip(ring, last, strict=True):
            core.left.append(time + 1)
