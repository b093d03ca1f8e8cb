"""A benchmark's result in words: a table of runs, and one line per ratio."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from sift_onnx.records.benchmark import BenchmarkReport, RatioOfRuns
from sift_onnx.records.decoding import DecodeRun
from sift_onnx.reports.fitting_table import FittingTable

__all__ = ["decodes_table", "place_lines", "ratio_line", "runs_table"]

# Where the CPU back end runs nodes.
_CHOICE = ("kernels", "onnxruntime")


def runs_table(report: BenchmarkReport) -> FittingTable:
    """The ``runs`` of a result of ``sift-onnx benchmark``; times in milliseconds."""
    loaded = any(run.streams for run in report.runs)
    # Under load, how late the last ones are matters most.
    spare = ("iterations", "threads", *(() if loaded else ("p99", "p90")), "min", "items/s")
    columns = f"<model|<back end|batch|threads|{'streams|requests/s|' * loaded}median ms|min|p90|p99|iterations|items/s"
    table = FittingTable(columns, spare=spare)
    for run in report.runs:
        table.add_row(
            Text(run.model + " (baseline)" * run.baseline),
            Text(run.backend + " (simulated)" * run.simulated),
            str(run.batch),
            str(run.threads),
            *((str(run.streams or 1), f"{run.rate:g}" if run.rate else "") if loaded else ()),
            *(_significant(getattr(run, key)) for key in ("median_ms", "min_ms", "p90_ms", "p99_ms")),
            str(run.iterations),
            _significant(run.items_per_second),
        )
    return table


def decodes_table(runs: Sequence[DecodeRun]) -> FittingTable:
    """Decoders token by token; times in milliseconds."""
    columns = "<model|<back end|sequences|threads|prompt|tokens|first ms|token ms|min|rounds|tokens/s"
    table = FittingTable(columns, spare=("rounds", "threads", "min"))
    for run in runs:
        table.add_row(
            Text(run.model + " (baseline)" * run.baseline),
            Text(run.backend),
            *(str(number) for number in (run.batch, run.threads, run.prompt, run.tokens)),
            *(_significant(time) for time in (run.first_ms, run.token_ms, run.min_token_ms)),
            str(run.rounds),
            _significant(run.tokens_per_second),
        )
    return table


def place_lines(report: BenchmarkReport) -> list[str]:
    """Who ran the nodes of each model, and what was timed to find out; of back ends that have a choice."""
    lines = []
    for run in report.runs:
        nodes = {place: count for place, count in (run.nodes or {}).items() if place in _CHOICE}
        if nodes:
            listed = ", ".join(f"{place} {count}" for place, count in sorted(nodes.items()))
            said = f"; {run.verdict}" if run.verdict else ""
            lines.append(f"{run.label}, batch {run.batch}: nodes in {listed}{said}")
    return lines


def ratio_line(ratio: RatioOfRuns) -> str:
    """One of the ``ratios`` of a result, in a sentence that names what was compared with what."""
    low, high = ratio.spread
    slower = ratio.median >= 1
    factor, ends = ratio.median, (low, high)
    if not slower:
        factor, ends = 1 / factor, (1 / high, 1 / low)
    remark = "; no clear difference" if low <= 1 <= high else ""
    compared = f"{_factor(factor)}x {'slower' if slower else 'faster'} than {ratio.b}"
    return (
        f"{ratio.a}, batch {ratio.batch}: {compared} "
        f"(median of paired slices; spread {_factor(ends[0])}-{_factor(ends[1])}{remark})"
    )


def _factor(value: float) -> str:
    return f"{value:.2f}" if value < 2 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _significant(value: float) -> str:
    decimals = 3 if value < 10 else 2 if value < 100 else 1 if value < 1000 else 0
    return f"{value:.{decimals}f}"
