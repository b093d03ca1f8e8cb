"""Where on the grid the work is: maps of busy time, wavelets and queues."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.dataflow.machines.machine import GridMachine
from sift_onnx.backends.dataflow.simulation.result import Simulation
from sift_onnx.records.simulate import GridMap

__all__ = ["HeatMap", "heat_maps"]

_MOST_COLUMNS, _MOST_ROWS = 125, 71


@dataclass(frozen=True, eq=False)
class HeatMap:
    """A quantity per block of cores.

    Attributes:
        title: what it is, with its unit.
        values: mean over the cores of each block, ``[blocks along y, blocks along x]``.
        columns: cores along x.
        rows: cores along y.
    """

    title: str
    values: npt.NDArray[np.float64]
    columns: int
    rows: int

    def report(self) -> GridMap:
        """One of ``maps`` of what ``simulate`` reports."""
        largest = float(self.values.max(initial=0.0))
        shares = np.rint(self.values * (255 / largest if largest else 0.0)).astype(np.uint8)
        rows, columns = self.values.shape
        return GridMap(
            title=self.title,
            columns=self.columns,
            rows=self.rows,
            shape=(rows, columns),
            largest=largest,
            shares=base64.b64encode(shares.tobytes()).decode("ascii"),
        )


def heat_maps(simulation: Simulation) -> tuple[HeatMap, ...]:
    """Busy share and wavelets of the cores over the whole run, and peaks of queues where events were followed.

    Empty for a machine without a grid.
    """
    machine = simulation.machine
    if not isinstance(machine, GridMachine):
        return ()
    busy = np.zeros((min(machine.rows, _MOST_ROWS), min(machine.columns, _MOST_COLUMNS)))
    wavelets, peaks = np.zeros_like(busy), np.zeros_like(busy)
    followed = False
    for layer in simulation.layers if simulation.decoded is None else simulation.decoded.layers:
        if not len(layer.column_busy):
            busy += layer.mean_busy_cycles
            continue
        full, short, ratio = layer.row_share
        rows = np.zeros(machine.rows)
        rows[:full], rows[full : full + short] = 1.0, ratio
        busy += np.outer(_blocks(rows, busy.shape[0]), _blocks(layer.column_busy, busy.shape[1], machine.columns))
        reached = _blocks((rows > 0).astype(np.float64), busy.shape[0])
        wavelets += np.outer(reached, _blocks(layer.column_wavelets, busy.shape[1], machine.columns))
        if layer.events is not None:
            followed = True
            for (x, y), peak in layer.events.queue_peaks.items():
                peaks[y, x] = max(peaks[y, x], peak)
    size = machine.columns, machine.rows
    maps = [
        HeatMap("busy share of all cycles", busy / max(simulation.cycles, 1), *size),
        HeatMap("wavelets per core", wavelets, *size),
    ]
    # Grids that events are followed on are small enough to be shown core by core.
    return (*maps, HeatMap("most wavelets in a queue", peaks, *size)) if followed else tuple(maps)


def _blocks(values: npt.NDArray[np.number], blocks: int, length: int | None = None) -> npt.NDArray[np.float64]:
    """Means over ``blocks`` nearly equal stretches of ``values``, padded with zeros to ``length``."""
    size = len(values) if length is None else length
    padded = np.zeros(size)
    padded[: len(values)] = values
    edges = np.arange(blocks) * size // blocks
    means: npt.NDArray[np.float64] = np.add.reduceat(padded, edges) / np.diff(np.append(edges, size))
    return means
