"""The result of ``evaluate`` as a table, and how far models are from the baseline."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from sift_onnx.records.evaluation import EvaluationReport, MetricDifference
from sift_onnx.report.fitting_table import FittingTable

__all__ = ["drops", "evaluation_words"]

_SHARES = ("top1", "top5")
_LOWER_IS_BETTER = ("loss", "perplexity", "mse", "mae")


def evaluation_words(report: EvaluationReport) -> Iterator[RenderableType]:
    """A table of the runs, and one line for each model that is compared."""
    metrics = list(dict.fromkeys(name for run in report.runs for name in run.metrics))
    headings = "|".join(_heading(name) for name in metrics)
    table = FittingTable(f"<model|<back end|{headings}", title=f"{report.examples:,} examples of {report.data}")
    for run in report.runs:
        figures = [_figure(name, run.metrics[name]) for name in metrics]
        table.add_row(Text(run.model + " (baseline)" * run.baseline), Text(run.backend), *figures)
    yield table
    pairs = list(dict.fromkeys((d.model, d.baseline, d.backend) for d in report.differences))
    for model, baseline, backend in pairs:
        own = [d for d in report.differences if (d.model, d.baseline, d.backend) == (model, baseline, backend)]
        yield f"{model} on {backend}, against {baseline}: {', '.join(map(_difference, own))}"


def drops(report: EvaluationReport, most: float) -> Iterator[str]:
    """A line for each model whose first metric is worse than the baseline's by more than ``most``."""
    first = next(iter(report.runs[0].metrics))
    sign = 1 if first in _LOWER_IS_BETTER else -1
    for found in report.differences:
        if found.metric == first and sign * found.difference > most:
            compared = f"{_difference(found)} against {found.baseline}"
            yield f"{found.model} on {found.backend}: {compared}, and {most:g} is allowed"


def _heading(name: str) -> str:
    return {"top1": "top-1", "top5": "top-5"}.get(name, name.rpartition(":")[2] if ".py:" in name else name)


def _figure(name: str, value: float) -> str:
    return f"{value:.2%}" if name in _SHARES else f"{value:.4g}"


def _difference(found: MetricDifference) -> str:
    heading, value = _heading(found.metric), found.difference
    if found.metric in _SHARES:
        if not value:
            return f"{heading} the same"
        return f"{heading} {abs(value) * 100:.2f} points {'higher' if value > 0 else 'lower'}"
    return f"{heading} {value:+.4g}"
