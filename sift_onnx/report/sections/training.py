"""Sections about trainings: their course, and accuracy against cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from sift_onnx.records.train import TrainedCost, TrainReport
from sift_onnx.report.charts.accuracy import Point, accuracy_chart
from sift_onnx.report.charts.canvas import charts_html
from sift_onnx.report.charts.training import Run, course_chart, masks_chart
from sift_onnx.report.documents import Document
from sift_onnx.report.numbers import si
from sift_onnx.report.page.markup import Markup, join, tag
from sift_onnx.report.page.table import Table, table_html

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
        remarks.append("No run followed how its masks moved: metrics: true in the recipe's sparsity does.")
    return join(charts_html(charts, prefix), *(tag("p", r, class_="soft") for r in remarks), _table(documents, names))


def accuracy_html(documents: Sequence[TrainDocument], prefix: str) -> Markup | None:
    """The chart of accuracy against FLOPs; None where fewer than two runs have both."""
    points = []
    for d in documents:
        cost, accuracy = d.data.cost, d.data.validation.accuracy
        if isinstance(cost, TrainedCost) and accuracy is not None and cost.effective_macs + cost.attention_macs > 0:
            masked = d.data.sparsity
            points.append(
                Point(
                    _group(d),
                    cost.effective_macs + cost.attention_macs,
                    accuracy,
                    masked.nnz == masked.numel,
                    d.data.steps,
                )
            )
    return charts_html([accuracy_chart(points)], prefix) if len(points) > 1 else None


def _group(document: TrainDocument) -> str:
    """What repetitions of a run share: the model that they started from, and how its masks moved."""
    return " ".join(_parts(document))


def _parts(document: TrainDocument) -> list[str]:
    """The model, its sparsity, and the algorithm."""
    data = document.data
    parts = [Path(data.model).stem]
    sparsity = data.sparsity
    if sparsity.nnz < sparsity.numel:
        algorithms = dict.fromkeys(entry.algorithm for entry in sparsity.algorithms)
        parts += [f"{1 - sparsity.nnz / sparsity.numel:.0%}", "+".join(algorithms)]
    return parts


def _names(documents: Sequence[TrainDocument]) -> list[str]:
    """A name for each run; runs that would share one also have the name of their file."""
    names = [_group(d) for d in documents]
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
