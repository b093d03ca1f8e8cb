"""Sections about trainings: their course, and accuracy against cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from sift_onnx.records.train import TrainedCost, TrainReport
from sift_onnx.reports.charts.accuracy import accuracy_chart
from sift_onnx.reports.charts.canvas import charts_html
from sift_onnx.reports.charts.training import Run, course_chart, masks_chart
from sift_onnx.reports.documents import Document
from sift_onnx.reports.numbers import si
from sift_onnx.reports.page.markup import Markup, join, tag
from sift_onnx.reports.page.table import Table, table_html
from sift_onnx.reports.trained_models import points_of, training_words

__all__ = ["accuracy_html", "training_html"]

TrainDocument: TypeAlias = Document[TrainReport]

_EXPLORED = ("itop", "doc", "churn")


def training_html(documents: Sequence[TrainDocument], prefix: str) -> Markup:
    """Curves of all runs, and a table of their results."""
    names = _names(documents)
    runs = [Run(name, d.data.history) for name, d in zip(names, documents, strict=True) if d.data.history is not None]
    charts = [chart for chart in (course_chart(runs), masks_chart(runs)) if chart is not None]
    remarks = []
    if len(runs) < len(documents):
        remarks.append("Runs without a history are in the table alone; train writes one into its JSON.")
    elif runs and len(charts) < 2 and any(d.data.sparsity.numel for d in documents):
        remarks.append("No run recorded how its masks changed; metrics: true in the recipe's sparsity does.")
    return join(charts_html(charts, prefix), *(tag("p", r, class_="soft") for r in remarks), _table(documents, names))


def accuracy_html(documents: Sequence[TrainDocument], prefix: str) -> Markup | None:
    """The chart of accuracy against FLOPs; None where fewer than two runs have both."""
    points = points_of(documents)
    return charts_html([accuracy_chart(points)], prefix) if len(points) > 1 else None


def _names(documents: Sequence[TrainDocument]) -> list[str]:
    """A name for each run; runs that would share one also have the name of their file."""
    names = [training_words(d.data) for d in documents]
    counts = Counter(names)
    return [f"{n} ({Path(d.path).stem})" if counts[n] > 1 else n for n, d in zip(names, documents, strict=True)]


def _table(documents: Sequence[TrainDocument], names: Sequence[str]) -> Markup:
    rows = []
    for name, document in zip(names, documents, strict=True):
        data = document.data
        validation, sparsity, cost = data.validation, data.sparsity, data.cost
        measured = [
            ", ".join(f"{key} {value:.1%}" for key in _EXPLORED if (value := getattr(entry, key)) is not None)
            for entry in sparsity.algorithms
        ]
        rows.append(
            (
                name,
                data.out,
                f"{data.steps:,}",
                f"{data.loss:.4g}" if data.loss is not None else "",
                f"{validation.loss:.4g}" if validation.loss is not None else "",
                f"{validation.accuracy:.2%}" if validation.accuracy is not None else "",
                f"{1 - sparsity.nnz / sparsity.numel:.2%}" if sparsity.numel else "dense",
                si(cost.effective_macs + cost.attention_macs) if isinstance(cost, TrainedCost) else "",
                "; ".join(filter(None, measured)),
                f"{data.device}, {data.seconds:.0f} s",
            )
        )
    columns = "<run|<written to|steps|loss|validation loss|accuracy|sparsity|MACs per example|<masks|<on"
    return table_html(Table.of("Trainings", columns, rows))
