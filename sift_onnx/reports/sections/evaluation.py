"""The section about evaluations: how good models are on the same examples."""

from __future__ import annotations

from sift_onnx.records.evaluation import EvaluationReport
from sift_onnx.reports.documents import Document
from sift_onnx.reports.evaluation import difference_lines, run_rows
from sift_onnx.reports.page.markup import Markup, join, tag
from sift_onnx.reports.page.notes import notes_html
from sift_onnx.reports.page.table import Table, table_html

__all__ = ["evaluation_html"]


def evaluation_html(document: Document[EvaluationReport], prefix: str) -> Markup:
    """The table of runs, and how far each model is from the baseline."""
    data = document.data
    columns, rows = run_rows(data)
    lines = [tag("p", line + ".") for line in difference_lines(data)]
    return join(
        tag("p", f"{data.examples:,} examples of {data.data}.", class_="soft"),
        table_html(Table.of("Evaluation", columns, rows)),
        *lines,
        notes_html(data.warnings),
    )
