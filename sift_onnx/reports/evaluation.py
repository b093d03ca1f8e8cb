"""The result of ``evaluate`` as a table, and how far models are from the baseline."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from sift_onnx.records.evaluation import EvaluationReport, MetricDifference
from sift_onnx.reports.fitting_table import FittingTable

__all__ = ["difference_lines", "difference_text", "drops", "evaluation_words", "run_rows"]

_SHARES = ("top1", "top5")
_LOWER_IS_BETTER = ("loss", "perplexity", "mse", "mae")


def evaluation_words(report: EvaluationReport) -> Iterator[RenderableType]:
    """A table of the runs, and one line for each model that is compared."""
    columns, rows = run_rows(report)
    table = FittingTable(columns, title=f"{report.examples:,} examples of {report.data}")
    for row in rows:
        table.add_row(*map(Text, row))
    yield table
    yield from difference_lines(report)


def run_rows(report: EvaluationReport) -> tuple[str, list[tuple[str, ...]]]:
    """Headings, as tables take them, and the cells of each run."""
    metrics = list(dict.fromkeys(name for run in report.runs for name in run.metrics))
    rows = [
        (run.model + " (baseline)" * run.baseline, run.backend, *(_figure(n, run.metrics[n]) for n in metrics))
        for run in report.runs
    ]
    return "|".join(["<model", "<back end", *map(_heading, metrics)]), rows


def difference_lines(report: EvaluationReport) -> Iterator[str]:
    """One line for each model that is compared."""
    pairs = list(dict.fromkeys((d.model, d.baseline, d.backend) for d in report.differences))
    for model, baseline, backend in pairs:
        own = [d for d in report.differences if (d.model, d.baseline, d.backend) == (model, baseline, backend)]
        yield f"{model} on {backend}, against {baseline}: {', '.join(map(difference_text, own))}"


def drops(report: EvaluationReport, most: float) -> Iterator[str]:
    """A line for each model whose first metric is worse than the baseline's by more than ``most``."""
    first = next(iter(report.runs[0].metrics))
    sign = 1 if first in _LOWER_IS_BETTER else -1
    for found in report.differences:
        if found.metric == first and sign * found.difference > most:
            compared = f"{difference_text(found)} against {found.baseline}"
            yield f"{found.model} on {found.backend}: {compared}, and {most:g} is allowed"


def _heading(name: str) -> str:
    return {"top1": "top-1", "top5": "top-5"}.get(name, name.rpartition(":")[2] if ".py:" in name else name)


def _figure(name: str, value: float) -> str:
    return f"{value:.2%}" if name in _SHARES else f"{value:.4g}"


def difference_text(found: MetricDifference) -> str:
    """The difference in words: ``top-1 0.67 points higher``."""
    heading, value = _heading(found.metric), found.difference
    if found.metric in _SHARES:
        if not value:
            return f"{heading} the same"
        return f"{heading} {abs(value) * 100:.2f} points {'higher' if value > 0 else 'lower'}"
    return f"{heading} {value:+.4g}"
