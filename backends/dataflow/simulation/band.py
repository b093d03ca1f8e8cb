"""How far a speed-up may be off: the machine at the corners of what is not known of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from sift_onnx.backends.dataflow.machines.machine import GridMachine, Machine
from sift_onnx.records.simulate import Bands, Speedups

__all__ = ["UNKNOWN", "Speedup", "band_of", "corners", "speedups_of"]

# The two parameters that decide most and that no source gives: how far columns run apart, and what a non-zero costs
# besides its vector steps. Corners are close to the extremes but no strict bound: the window also takes SRAM and so
# decides the passes over the weights, which makes the speed-up rise and fall with it by fractions of a percent.
UNKNOWN = ("window_rows", "axpy_startup")


@dataclass(frozen=True)
class Speedup:
    """How much faster than something: a number, and a band where parameters of the machine are not known."""

    value: float
    low: float
    high: float


def corners(machine: Machine) -> tuple[GridMachine, ...]:
    """The machine at every combination of the ends of what is unknown; empty where all is known."""
    if not isinstance(machine, GridMachine):
        return ()
    ends = [
        tuple(dict.fromkeys((machine.parameters[key].low, machine.parameters[key].high)))
        if key in machine.parameters
        else (getattr(machine, key),)
        for key in UNKNOWN
    ]
    if all(len(pair) == 1 for pair in ends):
        return ()
    return tuple(replace(machine, window_rows=w, axpy_startup=t0) for w, t0 in itertools.product(*ends))


def band_of(value: float, others: Iterable[float]) -> Speedup:
    """``value`` with the range of itself and ``others``."""
    everything = [value, *others]
    return Speedup(value, min(everything), max(everything))


def speedups_of(vs_dense_wide: Speedup | None, vs_dense_original: Speedup | None) -> Speedups:
    """As they are reported."""
    wide, original = vs_dense_wide, vs_dense_original
    return Speedups(
        vs_dense_wide=None if wide is None else wide.value,
        vs_dense_original=None if original is None else original.value,
        bands=Bands(
            vs_dense_wide=None if wide is None else (wide.low, wide.high),
            vs_dense_original=None if original is None else (original.low, original.high),
        ),
    )
