"""Timing of programs that several callers use at once: from as many streams as there are, or as requests arrive."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sift_onnx.backends.measure import Timing
from sift_onnx.errors import UsageError

__all__ = ["Load", "under_load"]

# A slice is as long as this many of the slowest requests, and at least this many seconds.
_SLICE_REQUESTS = 4
_SLICE_SECONDS = 0.25
# Where requests arrive, a slice has this many of them, on average, at least.
_ARRIVALS = 10
# A request that has waited for as many times the length of its slice is given up.
_PATIENCE = 4
# A Python process serves fewer requests per second than this. The arrival times of a slice are held in memory.
_MOST_PER_SECOND = 1_000_000


@dataclass(frozen=True)
class Load:
    """How a program is called.

    Attributes:
        streams: callers at the same time, each of which waits for its result.
        rate: requests per second that arrive on average, at random (a Poisson process); a caller that is free takes
            the next one, and its latency counts from when it arrived. One that has waited for four times the length of
            its slice is given up. None: a caller asks again at once.
        seed: of the arrivals, which are the same for all programs.

    Raises:
        UsageError: fewer streams than one, or a rate that is no positive number, or above a million.
    """

    streams: int = 1
    rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.streams < 1:
            raise UsageError(f"streams is {self.streams}; it must be at least 1")
        if self.rate is not None and not (math.isfinite(self.rate) and self.rate > 0):
            raise UsageError(f"rate is {self.rate}; it must be a number of requests per second above 0")
        if self.rate is not None and self.rate > _MOST_PER_SECOND:
            raise UsageError(f"rate is {self.rate:g}; it must be at most {_MOST_PER_SECOND:,} requests per second")

    def arrivals(self, seconds: float, part: int) -> list[float]:
        """Seconds from the begin of a slice, the ``part``-th one, at which requests arrive; one at least.

        None is later than four times ``seconds``: at a very low rate, the one would not arrive for days.
        """
        assert self.rate is not None
        rng = np.random.default_rng((self.seed, part))
        count = max(1, round(seconds * self.rate))
        times = np.cumsum(rng.exponential(1 / self.rate, count))
        return [float(at) for at in np.minimum(times, _PATIENCE * seconds)]


@dataclass
class _Program:
    """A program, and its slices so far."""

    run: Callable[[], object]
    slices: list[tuple[int, ...]] = field(default_factory=list)
    wall_ns: int = 0
    unserved: int = 0

    def add(self, latencies: list[int], wall_ns: int, requests: int | None = None) -> None:
        self.slices.append(tuple(latencies))
        self.wall_ns += wall_ns
        self.unserved += 0 if requests is None else requests - len(latencies)


def under_load(
    runs: Sequence[Callable[[], object]],
    load: Load,
    *,
    seconds: float = 3.0,
    warmup: float = 0.5,
    on_round: Callable[[int, int], None] | None = None,
) -> list[Timing]:
    """Latencies of ``runs`` under ``load``, one slice of each in turn.

    Args:
        runs: each does one request, and may be called from several threads.
        load: how they are called.
        seconds: to measure each for, at least.
        warmup: seconds to run each for before, at least one request of each stream.
        on_round: called after every round with how many are done and how many are expected.

    Returns:
        Latencies by slice, how long all slices took, from which the throughput follows, and how many requests were
        given up.
    """
    programs = [_Program(run) for run in runs]
    slowest = max((max(_burst(run, load.streams, warmup)[0]) for run in runs), default=0)
    slice_seconds = max(min(_SLICE_SECONDS, seconds), _SLICE_REQUESTS * slowest / 1e9)
    if load.rate is not None:
        slice_seconds = max(slice_seconds, min(seconds, _ARRIVALS / load.rate))
    rounds = max(1, math.ceil(seconds / slice_seconds))
    for part in range(rounds):
        for program in programs:
            if load.rate is None:
                program.add(*_burst(program.run, load.streams, slice_seconds))
            else:
                arrivals = load.arrivals(slice_seconds, part)
                served = _served(program.run, load.streams, arrivals, _PATIENCE * slice_seconds)
                program.add(*served, len(arrivals))
        if on_round is not None:
            on_round(part + 1, rounds)
    return [Timing(tuple(program.slices), program.wall_ns, program.unserved) for program in programs]


def _burst(run: Callable[[], object], streams: int, seconds: float) -> tuple[list[int], int]:
    """Latencies of callers that ask again at once, each once at least, and the time until the last is done."""
    until = time.perf_counter_ns() + round(1e9 * seconds)

    def call(latencies: list[int]) -> None:
        while True:
            start = time.perf_counter_ns()
            run()
            end = time.perf_counter_ns()
            latencies.append(end - start)
            if end >= until:
                return

    return _at_once(call, streams)


def _served(
    run: Callable[[], object], streams: int, arrivals: Sequence[float], patience: float
) -> tuple[list[int], int]:
    """Latencies of requests that arrive at given seconds, and the time until the last is done.

    Those that have waited for longer than ``patience``, in seconds, are given up, but for the first one.
    """
    begin = time.perf_counter_ns()
    next_of = itertools.count()

    def call(latencies: list[int]) -> None:
        while (number := next(next_of)) < len(arrivals):
            arrival = begin + round(1e9 * arrivals[number])
            early = arrival - time.perf_counter_ns()
            if early > 0:
                time.sleep(early / 1e9)
            elif number and -early > 1e9 * patience:
                continue
            run()
            latencies.append(time.perf_counter_ns() - arrival)

    return _at_once(call, streams)


def _at_once(call: Callable[[list[int]], None], streams: int) -> tuple[list[int], int]:
    """What calls append, and the time until the last of them returns; the first error of any is raised."""
    lists: list[list[int]] = [[] for _ in range(streams)]
    failures: list[BaseException] = []

    def work(latencies: list[int]) -> None:
        try:
            call(latencies)
        except BaseException as error:
            failures.append(error)

    begin = time.perf_counter_ns()
    if streams == 1:
        call(lists[0])
    else:
        threads = [threading.Thread(target=work, args=(latencies,)) for latencies in lists]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    return [latency for latencies in lists for latency in latencies], time.perf_counter_ns() - begin
