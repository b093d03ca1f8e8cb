"""Timing that can be compared: programs take turns in short slices, so that drift of the machine hits all alike."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from sift_onnx.backends.processors import allowed_processors, cgroup_quota, usable_processors
from sift_onnx.errors import UsageError

__all__ = ["Ratio", "Summary", "Timing", "host", "interleave", "paired_ratio", "summarize"]

_SLICE_NS = 50_000_000
_MIN_ITERATIONS = 10
# Where ten iterations would take over four times the seconds asked for, three must do.
_FLOOR_ITERATIONS = 3
_PATIENCE = 4


@dataclass(frozen=True)
class Timing:
    """Nanoseconds per iteration, in slices: ``slices[i]`` of programs timed together ran right after one another.

    Attributes:
        slices: one after the other.
        wall_ns: that all slices took, where iterations were at the same time; 0 where they followed each other.
        unserved: requests that arrived and were given up, because they had waited for too long.
    """

    slices: tuple[tuple[int, ...], ...]
    wall_ns: int = 0
    unserved: int = 0

    @property
    def iterations_per_second(self) -> float:
        """Of all callers; at the median where iterations followed each other."""
        if self.wall_ns:
            return 1e9 * sum(map(len, self.slices)) / self.wall_ns
        return 1e3 / summarize(self).median_ms


@dataclass(frozen=True)
class Summary:
    """Over all iterations; times in milliseconds, percentiles interpolated linearly."""

    median_ms: float
    min_ms: float
    p90_ms: float
    p99_ms: float
    iterations: int


@dataclass(frozen=True)
class Ratio:
    """The time of a program over that of another, slice by slice.

    Attributes:
        median: of the ratios of the slices' medians; above 1, the first program is the slower one.
        spread: first and third quartile of those ratios (the interquartile range).
        slices: how many pairs of slices there were.
    """

    median: float
    spread: tuple[float, float]
    slices: int


class _Clocked:
    """One program and its times so far."""

    def __init__(self, run: Callable[[], object], clock: Callable[[], int]) -> None:
        self.run = run
        self.clock = clock
        self.slices: list[tuple[int, ...]] = []
        self.iterations = 0
        self.measured_ns = 0

    def iterate_for(self, duration_ns: float) -> list[int]:
        """Run at least once, until ``duration_ns`` have passed."""
        times = []
        begin = self.clock()
        while True:
            start = self.clock()
            self.run()
            end = self.clock()
            times.append(end - start)
            if end - begin >= duration_ns:
                return times

    def measure_slice(self, duration_ns: float, run_in: bool) -> None:
        if run_in:
            self.run()
        times = self.iterate_for(duration_ns)
        self.slices.append(tuple(times))
        self.iterations += len(times)
        self.measured_ns += sum(times)

    def is_done(self, wanted_ns: float) -> bool:
        if self.measured_ns < wanted_ns or self.iterations < _FLOOR_ITERATIONS:
            return False
        return self.iterations >= _MIN_ITERATIONS or self.measured_ns >= _PATIENCE * wanted_ns


def interleave(
    runs: Sequence[Callable[[], object]],
    *,
    seconds: float = 3.0,
    warmup: float = 0.5,
    on_round: Callable[[int, int], None] | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> list[Timing]:
    """Time ``runs``, one slice of each in turn.

    A slice lasts as long as the slowest iteration, and at least 50 ms (a tenth of ``seconds`` if that is less). Where
    an iteration is short compared with the slice, the first one is not timed: it finds caches full of another's data.
    There are at least ten iterations of each; three, where ten would take over four times ``seconds``.

    Args:
        runs: each does one iteration.
        seconds: to measure each for, at least.
        warmup: seconds to run each for before, at least one iteration.
        on_round: called after every round with how many are done and how many are expected.
        clock: in nanoseconds.

    Raises:
        UsageError: ``seconds`` or ``warmup`` is negative or not finite.
    """
    for name, value in (("seconds", seconds), ("warmup", warmup)):
        if not (math.isfinite(value * 1e9) and value >= 0):
            raise UsageError(f"{name} is {value}; it has to be a finite number of seconds, 0 or more")
    programs = [_Clocked(run, clock) for run in runs]
    estimates = [min(program.iterate_for(warmup * 1e9)) for program in programs]
    if not programs:
        return []
    wanted_ns = seconds * 1e9
    slice_ns = max(min(_SLICE_NS, wanted_ns / 10), *estimates)
    expected = max(1, math.ceil(wanted_ns / slice_ns))
    done = 0
    while not all(program.is_done(wanted_ns) for program in programs):
        for program, estimate in zip(programs, estimates, strict=True):
            program.measure_slice(slice_ns, run_in=4 * estimate < slice_ns)
        done += 1
        if on_round is not None:
            on_round(done, max(done, expected))
    return [Timing(tuple(program.slices)) for program in programs]


def summarize(timing: Timing) -> Summary:
    """Statistics over all iterations of ``timing``, which has at least one."""
    times = np.concatenate([np.asarray(part, np.int64) for part in timing.slices]) / 1e6
    median, p90, p99 = (float(p) for p in np.percentile(times, (50, 90, 99)))
    return Summary(median, float(times.min()), p90, p99, len(times))


def paired_ratio(a: Timing, b: Timing) -> Ratio:
    """How long ``a`` takes in units of ``b``; both from one call of :func:`interleave`."""
    ratios = [float(np.median(x)) / max(float(np.median(y)), 1.0) for x, y in zip(a.slices, b.slices, strict=True)]
    low, median, high = (float(p) for p in np.percentile(ratios, (25, 50, 75)))
    return Ratio(median, (low, high), len(ratios))


def host() -> dict[str, Any]:
    """The machine and the software that a measurement is of, for its JSON."""
    try:
        onnxruntime = metadata.version("onnxruntime")
    except metadata.PackageNotFoundError:
        onnxruntime = None
    return {
        "cpu": _cpu_name(),
        "logical_cores": os.cpu_count(),
        "affinity": allowed_processors(),
        "cgroup_quota": cgroup_quota(),
        "usable_processors": usable_processors(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "onnxruntime": onnxruntime,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
