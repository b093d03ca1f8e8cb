"""A check's result as a table."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from sift_onnx.records.check import CheckReport

__all__ = ["checks_table"]


def checks_table(report: CheckReport) -> Table:
    """The ``checks`` of a result of ``sift-onnx check``."""
    table = Table("check", "result", "detail")
    for check in report.checks:
        outcome = Text("ok", "green") if check.ok else Text("FAILED", "bold red")
        table.add_row(check.name, outcome, Text(check.detail))
    return table
