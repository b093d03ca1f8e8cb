"""``sift-onnx benchmark``: how fast models run, on which back end, and how much faster than a baseline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from sift_onnx.cli.candidates import backends as known_backends
from sift_onnx.cli.candidates import files
from sift_onnx.cli.options import (
    LARGEST_COUNT,
    FilePath,
    Number,
    PromptAndTokens,
    count_option,
    file_option,
    input_shapes_option,
    model_argument,
    number_option,
    output_options,
    seed_option,
)
from sift_onnx.cli.output import deliver, notes, status_line
from sift_onnx.cli.verb import Verb
from sift_onnx.errors import CheckError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sift_onnx.records.benchmark import BenchmarkReport, BenchmarkRun, RatioOfRuns


# A day.
MOST_SECONDS = 86_400


class Batches(click.ParamType[Any]):
    """``1,64``."""

    name = "N,N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            batches = tuple(int(part) for part in value.split(","))
        except ValueError:
            batches = ()
        if not batches or min(batches) < 1:
            self.fail(f"{value!r} is not of the form 1,64", param, ctx)
        if max(batches) > LARGEST_COUNT:
            self.fail(f"{max(batches)} is above {LARGEST_COUNT}", param, ctx)
        return tuple(dict.fromkeys(batches))


@click.command(cls=Verb)
@model_argument("models", type=FilePath(), metavar="MODEL...", nargs=-1, required=True)
@click.option(
    "--backend",
    "backends",
    metavar="NAME",
    multiple=True,
    default=("cpu", "onnxruntime"),
    show_default=True,
    shell_complete=files(".py", names=known_backends),
    help="Back end to time on: cpu, cpu:VALUES (weights of products as bf16, fp16 or int8), onnxruntime, "
    "dataflow[:PRESET] (simulated), or FILE.py:CLASS for your own "
    "(repeatable).",
)
@file_option(
    "--baseline",
    completes=files(".onnx"),
    type=FilePath(),
    metavar="MODEL",
    help="Model to compare with; timed on the same back ends.",
)
@click.option("--batch", "batches", type=Batches(), help="Batch sizes, e.g. 1,64.  [default: the model's own, or 1]")
@click.option(
    "--decode",
    type=PromptAndTokens(),
    help="Time decoders with a cache: the first token after a prompt, then each of TOKENS new ones.",
)
@count_option("--threads", help="Threads.  [default: cores this process may use]")
@number_option(
    "--seconds", Number(min=0, min_open=True, max=MOST_SECONDS), "Seconds to measure each run for.", default=3.0
)
@number_option("--warmup", Number(min=0, max=MOST_SECONDS), "Seconds to run each for before.", default=0.5)
@count_option("--streams", help="Callers at the same time, each of which waits for its result.")
@number_option(
    "--rate",
    Number(min=0, min_open=True),
    "Requests per second that arrive, at random; latencies count from their arrival.",
)
@number_option("--max-latency-ms", Number(min=0, min_open=True), "Gate: fail if the median of a MODEL is above this.")
@number_option(
    "--min-speedup",
    Number(min=0, min_open=True),
    "Gate: fail if a MODEL is not this much faster than --baseline on the same back end.",
)
@input_shapes_option
@seed_option
@output_options
def benchmark(
    models: tuple[str, ...],
    backends: tuple[str, ...],
    baseline: str | None,
    batches: tuple[int, ...] | None,
    decode: tuple[int, int] | None,
    threads: int | None,
    seconds: float,
    warmup: float,
    streams: int | None,
    rate: float | None,
    max_latency_ms: float | None,
    min_speedup: float | None,
    input_shapes: dict[str, tuple[int, ...]],
    seed: int,
    json_path: str | None,
    verbosity: int,
) -> None:
    """Time MODELs on one or more back ends, and compare them with a baseline.

    All models and back ends of a batch take turns in short slices within one process; ratios are taken slice by slice,
    so that they hold where the machine's speed drifts. Inputs are random. With --streams, callers share one program,
    and items per second are those of all; with --rate, they take requests as these arrive.

    Examples:
        sift-onnx benchmark wide.onnx --baseline resnet18.onnx --batch 1,64
        sift-onnx benchmark wide.onnx --backend cpu --backend onnxruntime --threads 4
        sift-onnx benchmark wide.onnx --backend cpu --max-latency-ms 50
        sift-onnx benchmark decoder.onnx --backend cpu --backend onnxruntime --decode 128,32
        sift-onnx benchmark wide.onnx --backend cpu --streams 4 --rate 30
    """
    from sift_onnx.backends.base import CompileOptions, get_backend
    from sift_onnx.backends.load import Load
    from sift_onnx.backends.measure import host
    from sift_onnx.cli import comparison
    from sift_onnx.records.benchmark import BenchmarkReport
    from sift_onnx.reports.active_zeros import zeros_line
    from sift_onnx.reports.benchmark import decodes_table, place_lines, ratio_line, runs_table

    if min_speedup is not None and baseline is None:
        raise UsageError("--min-speedup needs --baseline: faster than what?")
    load = None if streams is None and rate is None else Load(streams or 1, rate, seed)
    chosen = {name: get_backend(name) for name in backends}
    with status_line("reading models", verbosity):
        subjects = comparison.subjects_of(models, baseline, input_shapes)
    if decode is not None:
        from sift_onnx.cli.decode_comparison import compare_decoders

        if max_latency_ms is not None or min_speedup is not None:
            raise UsageError("--max-latency-ms and --min-speedup are about whole runs; leave them out with --decode")
        decoded = compare_decoders(subjects, chosen, threads, batches or (1,), decode, seconds, seed, verbosity)
        deliver(decoded, json_path, lambda found: [decodes_table(found.decodes or ()), *map(ratio_line, found.ratios)])
        notes(verbosity, (), decoded.warnings)
        return
    batches = batches or (comparison.own_batch(subjects),)
    for batch in batches:  # all of them, before any time is spent
        comparison.check_batch(subjects, batch)
    runs: list[BenchmarkRun] = []
    ratios: list[RatioOfRuns] = []
    missed: list[str] = []
    assumed: list[str] = []
    for batch in batches:
        entries = comparison.compile_all(subjects, chosen, CompileOptions(threads, batch), seed, verbosity)
        assumed += comparison.assumptions(entries)
        timings = comparison.time_in_turns(entries, seconds, warmup, verbosity, load)
        compared = comparison.ratios_to_baseline(entries, timings)
        runs += [comparison.run_record(*timed, load) for timed in zip(entries, timings, strict=True)]
        ratios += [comparison.ratio_record(*pair) for pair in compared]
        missed += comparison.latencies_missed(entries, timings, max_latency_ms)
        missed += comparison.speedups_missed(compared, min_speedup)

    report = BenchmarkReport(
        host=host(),
        runs=tuple(runs),
        ratios=tuple(ratios),
        warnings=(*comparison.zero_warnings(subjects), *comparison.rate_warnings(runs)),
        assumed=tuple(dict.fromkeys(assumed)) or None,
    )

    def in_words(report: BenchmarkReport) -> Iterator[RenderableType]:
        yield runs_table(report)
        counts = {run.model: (run.active_weights, run.active_zeros) for run in report.runs}
        for name, count in counts.items():
            yield from zeros_line(name, *count)
        yield from place_lines(report)
        yield from map(ratio_line, report.ratios)

    deliver(report, json_path, in_words)
    notes(verbosity, report.assumed, report.warnings)
    if missed:
        raise CheckError("; ".join(missed))
