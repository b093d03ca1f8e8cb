"""Tables of a page: each scrolls by itself where the screen is narrow, by keyboard too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sift_onnx.reports.page.markup import Markup, join, tag

__all__ = ["Table", "table_html"]

MOST_ROWS = 400
# Rows of a table that a phone shows below each other, each as a list of its cells; longer ones scroll sideways.
_STACKED_ROWS = 24


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        title: what it shows; its name for screen readers.
        columns: headings; one that starts with ``<`` is a column of text, aligned to the left.
        rows: cells, escaped unless they are markup.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]

    @classmethod
    def of(cls, title: str, columns: str, rows: Iterable[Sequence[str]]) -> Table:
        """With headings separated by ``|``."""
        return cls(title, tuple(columns.split("|")), tuple(rows))


def _class(cell: str, left: bool) -> str | None:
    if not left:
        return None
    return "text long" if len(cell) > 40 and not isinstance(cell, Markup) else "text"


def table_html(table: Table) -> Markup:
    """The table in a scrollable region; of very long ones the first rows, and how many there are."""
    is_text = [column.startswith("<") for column in table.columns]
    # The first column names the row.
    head = join(
        *(
            tag("th", column.removeprefix("<"), scope="col", class_="text" if left else None)
            for column, left in zip(table.columns, is_text, strict=True)
        )
    )
    is_stacked = len(table.rows) <= _STACKED_ROWS
    body = []
    for row in table.rows[:MOST_ROWS]:
        cells = [
            tag(
                "th" if not i else "td",
                cell,
                class_=_class(cell, left),
                scope=None if i else "row",
                data_label=column.removeprefix("<") if is_stacked and i else None,
            )
            for i, (cell, left, column) in enumerate(zip(row, is_text, table.columns, strict=True))
        ]
        body.append(tag("tr", *cells))
    more = len(table.rows) - len(body)
    note = tag("p", f"{len(body)} of {len(table.rows):,} rows; the others are in the JSON.", class_="soft")
    return join(
        tag(
            "div",
            tag("table", tag("thead", tag("tr", head)), tag("tbody", *body)),
            class_="scroll stacked" if is_stacked else "scroll",
            role="region",
            aria_label=table.title,
            tabindex="0",
        ),
        note if more else "",
    )
