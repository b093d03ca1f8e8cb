"""Records as text and as HTML: the tables of the command line, in a terminal, a log or a notebook."""

from __future__ import annotations

import html
import io
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from rich.console import RenderableType
from rich.table import Table

from sift_onnx.records.benchmark import BenchmarkReport
from sift_onnx.records.check import CheckReport
from sift_onnx.records.cost import CostReport
from sift_onnx.records.evaluation import EvaluationReport
from sift_onnx.records.profile import ProfileReport
from sift_onnx.records.quantization import QuantizationReport
from sift_onnx.records.record import Record, print_records_by
from sift_onnx.records.simulate import SimulationReport
from sift_onnx.records.transform import TransformReport
from sift_onnx.reports.active_zeros import zeros_line
from sift_onnx.reports.benchmark import place_lines, ratio_line, runs_table
from sift_onnx.reports.check import checks_table
from sift_onnx.reports.evaluation import evaluation_words
from sift_onnx.reports.fitting_table import least_width
from sift_onnx.reports.inspect import inspect_tables
from sift_onnx.reports.plain_console import PlainConsole
from sift_onnx.reports.profile import nodes_table, summary_line
from sift_onnx.reports.quantization import quantization_words
from sift_onnx.reports.simulate import simulate_tables
from sift_onnx.reports.transform import transform_tables

__all__ = ["print_records", "printed"]

_STYLE = "font-family:Menlo,Consolas,'DejaVu Sans Mono',monospace;line-height:1.2;overflow-x:auto"


def print_records() -> None:
    """Have ``print(record)`` and notebooks show tables from now on."""
    print_records_by(printed)


def printed(record: Record, form: Literal["text", "html"]) -> str | None:
    """A record as the command line prints it; None for parts of results, which have no tables of their own."""
    words = _WORDS.get(type(record))
    if words is None:
        return None
    if form == "html":
        text = _text(words(record), 10_000)
        return f'<pre style="{_STYLE}">{html.escape(text)}</pre>'
    return _text(words(record), shutil.get_terminal_size((140, 24)).columns)


def _text(parts: Iterable[RenderableType], width: int) -> str:
    stream = io.StringIO()
    console = PlainConsole(file=stream, width=width, color_system=None, force_terminal=False, legacy_windows=False)
    for part in parts:
        # No number is broken, and no column left out: what is printed may be looked at later, in a wider window.
        console.width = max(width, least_width(console, part)) if isinstance(part, Table) else width
        console.print(part, soft_wrap=isinstance(part, str))
    return stream.getvalue().rstrip("\n")


def _benchmark(report: BenchmarkReport) -> Iterator[RenderableType]:
    yield runs_table(report)
    yield from place_lines(report)
    yield from map(ratio_line, report.ratios)


def _profile(report: ProfileReport) -> Iterator[RenderableType]:
    yield nodes_table(report)
    yield from zeros_line(report.model, report.active_weights, report.active_zeros)
    yield summary_line(report)


_WORDS: dict[type[Record], Callable[[Any], Iterable[RenderableType]]] = {
    BenchmarkReport: _benchmark,
    CheckReport: lambda report: [checks_table(report)],
    CostReport: lambda report: inspect_tables(report, report.model or "the model"),
    EvaluationReport: evaluation_words,
    ProfileReport: _profile,
    QuantizationReport: quantization_words,
    SimulationReport: simulate_tables,
    TransformReport: transform_tables,
}
