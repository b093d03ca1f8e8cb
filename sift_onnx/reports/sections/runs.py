"""Sections about times: latency against its bounds, and profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sift_onnx.records.benchmark import BenchmarkReport, BenchmarkRun
from sift_onnx.records.profile import ProfileReport
from sift_onnx.reports.benchmark import ratio_line
from sift_onnx.reports.charts.canvas import Chart, charts_html
from sift_onnx.reports.charts.latency import Curve, bounds_chart
from sift_onnx.reports.charts.nodes import nodes_chart
from sift_onnx.reports.documents import Document
from sift_onnx.reports.page.markup import Markup, join, tag
from sift_onnx.reports.page.notes import notes_html
from sift_onnx.reports.page.table import Table, table_html
from sift_onnx.reports.profile import placement_lines

__all__ = ["benchmark_html", "profile_html"]

_DENSE = "onnxruntime"  # runs masked weights as dense ones


def benchmark_html(document: Document[BenchmarkReport], sparsities: Mapping[str, float], prefix: str) -> Markup:
    """A chart for each batch, the comparisons in words, and all runs."""
    data = document.data
    charts = []
    for batch in dict.fromkeys(run.batch for run in data.runs):
        runs = [run for run in data.runs if run.batch == batch]
        charts += [
            _latency(f"{what}, batch {batch}", part, sparsities)
            for what, part in (
                ("Latency against its bounds", [run for run in runs if not run.simulated]),
                ("Simulated latency", [run for run in runs if run.simulated]),
            )
            if part
        ]
    lines = [tag("li", ratio_line(ratio)) for ratio in data.ratios]
    columns = "<model|<back end|batch|threads|median ms|fastest ms|p90 ms|p99 ms|iterations|items/s"
    rows = [
        (
            run.model + " (baseline)" * run.baseline,
            run.backend + " (simulated)" * run.simulated,
            str(run.batch),
            str(run.threads),
            *(f"{getattr(run, key):.4g}" for key in ("median_ms", "min_ms", "p90_ms", "p99_ms")),
            f"{run.iterations:,}",
            f"{run.items_per_second:,.4g}" if run.items_per_second < 1e4 else f"{run.items_per_second:,.0f}",
        )
        for run in data.runs
    ]
    return join(
        tag("p", _host(data.host), class_="soft"),
        charts_html(charts, prefix),
        tag("details", tag("summary", f"{len(lines)} comparisons"), tag("ul", *lines)) if lines else "",
        table_html(Table.of("Runs", columns, rows)),
        notes_html(data.warnings),
    )


def _latency(title: str, runs: Sequence[BenchmarkRun], sparsities: Mapping[str, float]) -> Chart:
    paths = {run.model: run.baseline for run in runs}
    baseline = next((path for path, is_baseline in paths.items() if is_baseline), None)
    backends = list(dict.fromkeys(run.backend for run in runs))
    known = {path: sparsities.get(path, 0.0 if path == baseline else None) for path in paths}
    short = {path: Path(path).name for path in paths}
    names = {path: short[path] if list(short.values()).count(short[path]) == 1 else path for path in paths}
    curves = [
        Curve(
            f"{backend}: zeros are executed" if backend == _DENSE else backend,
            "dense" if backend == _DENSE else "measured",
            [_times(runs, path, backend) for path in paths],
        )
        for backend in backends
    ]
    caption = "Marks are medians; bars reach from the fastest run to the 90th percentile."
    if baseline is not None:
        reference = _DENSE if _DENSE in backends else backends[0]
        ideal = _times(runs, baseline, reference)
        assert ideal is not None
        curves.append(Curve(f"ideal: {names[baseline]} on {reference}", "ideal", [(ideal[0],) * 3] * len(paths)))
        caption += " Dotted: the dense baseline, which an iso-FLOP model would equal if zeros cost nothing."
    else:
        caption += " No baseline was timed, so there is no ideal line: benchmark --baseline MODEL times one."
    if _DENSE not in backends:
        caption += f" Dense execution was not timed: benchmark --backend {_DENSE} adds it."
    return bounds_chart(title, caption, {names[path]: known[path] for path in paths}, curves)


def _times(runs: Sequence[BenchmarkRun], path: str, backend: str) -> tuple[float, float, float] | None:
    for run in runs:
        if run.model == path and run.backend == backend:
            return run.median_ms, run.min_ms, max(run.p90_ms, run.median_ms)
    return None


def _host(host: Mapping[str, Any]) -> str:
    shown = [f"{key} {value}" for key, value in host.items() if isinstance(value, (str, int, float))]
    return "Measured on: " + ", ".join(shown) + "."


def profile_html(document: Document[ProfileReport], prefix: str) -> Markup:
    """Time by node, and why nodes are where they are."""
    lines = [tag("li", line) for line in placement_lines(document.data)]
    why = tag("details", tag("summary", "Why nodes are where they are"), tag("ul", *lines)) if lines else ""
    if not document.data.nodes:
        return join(tag("p", "The profile has no node."), why)
    notes = notes_html(document.data.warnings or ())
    return join(charts_html([nodes_chart(document.data)], prefix), why, notes)
