"""What ``benchmark`` reports."""

from __future__ import annotations

from typing import Any

from sift_onnx.records.decoding import DecodeRun
from sift_onnx.records.record import SCHEMA, Amount, Count, Positive, Record

__all__ = ["BenchmarkReport", "BenchmarkRun", "RatioOfRuns"]


class BenchmarkRun(Record, frozen=True, kw_only=True):
    """A model on a back end at a batch.

    Attributes:
        model: the file, as given.
        label: model and back end in words; ``ratios`` names runs by it.
        baseline: whether it is what others are compared with.
        backend: as it was chosen.
        batch: items per run.
        threads: that it ran on.
        simulated: whether the times are a simulator's.
        active_weights: of the model.
        active_zeros: how many of them are zero.
        median_ms: over all iterations, in milliseconds, as the next three.
        min_ms: of the fastest iteration.
        p90_ms: 90th percentile.
        p99_ms: 99th percentile.
        iterations: that were timed.
        items_per_second: at the median; of all streams, where there are any.
        streams: callers at the same time; None for one that asks again and again.
        rate: requests per second that were to arrive; latencies then count from their arrival. None where callers ask
            again at once.
        unserved: requests that arrived and were given up, because they had waited for too long; the times are of the
            others. None without ``rate``.
        nominal: shapes of inputs of which a size was assumed, by name.
        nodes: how many nodes of the model ran where; None where the back end does not report it.
        verdict: what timing said about where they run; None where nothing was timed for that.
    """

    model: str
    label: str
    baseline: bool
    backend: str
    batch: Count
    threads: Count
    simulated: bool
    active_weights: Count = 0
    active_zeros: Count = 0
    median_ms: Positive
    min_ms: Positive
    p90_ms: Positive
    p99_ms: Positive
    iterations: Count
    items_per_second: Amount
    streams: Count | None = None
    rate: Positive | None = None
    unserved: Count | None = None
    nominal: dict[str, tuple[Count, ...]] | None = None
    nodes: dict[str, Count] | None = None
    verdict: str | None = None


class RatioOfRuns(Record, frozen=True, kw_only=True):
    """How long one run takes in units of another, slice by slice.

    Attributes:
        a: label of the run.
        b: label of the run that it is compared with.
        batch: of both.
        median: of the ratios; above 1, ``a`` is the slower one.
        spread: first and third quartile of the ratios.
        slices: how many pairs of slices there were.
    """

    a: str
    b: str
    batch: Count
    median: Positive
    spread: tuple[Positive, Positive]
    slices: Count = 0


class BenchmarkReport(Record, frozen=True, kw_only=True):
    """Times of models on back ends, and how they compare with the baseline's.

    Attributes:
        host: the machine and the software.
        runs: of whole models.
        ratios: of runs, or of the times of a token.
        warnings: about the models.
        assumed: sizes that the models leave open.
        decodes: decoders token by token, where these were asked for.
    """

    schema: int = SCHEMA
    host: dict[str, Any]
    runs: tuple[BenchmarkRun, ...]
    ratios: tuple[RatioOfRuns, ...]
    warnings: tuple[str, ...] = ()
    assumed: tuple[str, ...] | None = None
    decodes: tuple[DecodeRun, ...] | None = None
