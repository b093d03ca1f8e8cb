"""The answers of a set of results on a terminal: each figure, and below it what was compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.styled import Styled
from rich.table import Table

from sift_onnx.reports.answers import Answer

__all__ = ["answer_table"]


def answer_table(found: Sequence[Answer]) -> Iterator[RenderableType]:
    """Two lines for each answer, more where the terminal is narrow; nothing without any."""
    if not found:
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for answer in found:
        # Strings, and not Text: the console spells out control characters of strings only.
        table.add_row(answer.topic, Group(Styled(answer.figure, "bold"), Styled(answer.detail, "dim")))
    yield table
