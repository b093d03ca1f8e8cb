"""The answers of a set of results on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sift_onnx.reports.answers import Answer

__all__ = ["answer_table"]


def answer_table(found: Sequence[Answer]) -> Iterator[RenderableType]:
    """A row for each answer; nothing without any."""
    if not found:
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(style="bold", min_width=24)
    table.add_column()
    for answer in found:
        table.add_row(Text(answer.topic), Text(answer.figure), Text(answer.detail))
    yield table
