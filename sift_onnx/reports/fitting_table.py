"""Tables that stay legible on a narrow terminal: no number is broken, and columns that can be spared go first."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table

__all__ = ["FittingTable", "least_width", "width_beyond_terminals"]

# Wider than any table: what it would take if it were asked.
_ENDLESS = 10_000
# Of what no terminal shows: each row is one line, unless a sentence in it is longer than this.
_FILE_WIDTHS = (140, 200)


class FittingTable(Table):
    """A table that gives way in steps where the terminal is narrower than it.

    First headings of columns of numbers take several lines, then the columns of ``spare`` are left out, which a caption
    says, and only then names are folded.
    """

    def __init__(self, columns: str = "", *, spare: Sequence[str] = (), **settings: Any) -> None:
        """An empty table.

        Args:
            columns: headings separated by ``|``; one that starts with ``<`` is a column of text, others are numbers.
            spare: headings of columns in the order in which they are left out.
            settings: as of :class:`rich.table.Table`.
        """
        super().__init__(**settings)
        self.spare = tuple(spare)
        for heading in filter(None, columns.split("|")):
            self.add_column(heading.removeprefix("<"), justify="left" if heading.startswith("<") else "right")

    def add_column(self, header: Any = "", footer: Any = "", **settings: Any) -> None:
        """As of :class:`rich.table.Table`; what is justified to the right is a number, and never broken."""
        is_number = settings.get("justify") == "right"
        super().add_column(header, footer, **{"overflow": "fold", "no_wrap": is_number, **settings})

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = copy.copy(self)
        columns = {str(column.header): column for column in self.columns}
        left_out: list[str] = []
        if least_width(console, table) > options.max_width:
            first, *others = columns
            columns = {first: columns[first]} | {heading: _with_narrow_heading(columns[heading]) for heading in others}
            table.columns = list(columns.values())
        for heading in self.spare:
            if least_width(console, table) <= options.max_width:
                break
            left_out.append(heading)
            table.columns = [column for name, column in columns.items() if name not in left_out]
        if table.columns and least_width(console, table) <= options.max_width:
            # A sentence is wrapped rather than a name.
            table.columns = [_unbroken(table.columns[0]), *table.columns[1:]]
        if left_out:
            table.caption = f"no room for {', '.join(left_out)}: a wider terminal, a pipe and --json have it all"
        yield from Table.__rich_console__(table, console, options)


def least_width(console: Console, table: Table) -> int:
    """Characters that a table needs if no number, no name (the first column) and no word is to be broken."""
    whole = copy.copy(table)
    whole.columns = [copy.copy(column) for column in table.columns]
    for column in whole.columns:
        if column.no_wrap or column is whole.columns[0]:  # rich measures the words of these, too
            column.min_width = max(map(cell_len, _lines(column)), default=0)
    return Measurement.get(console, console.options.update(max_width=_ENDLESS), whole).minimum


def width_beyond_terminals(console: Console, table: Table) -> int:
    """Characters that a table is given in a file or a pipe, where lines are looked for, not looked at."""
    least, most = _FILE_WIDTHS
    natural = Measurement.get(console, console.options.update(max_width=_ENDLESS), table).maximum
    return max(least, least_width(console, table), min(natural, most))


def _lines(column: Column) -> list[str]:
    return [line for cell in (column.header, *column.cells, column.footer) for line in str(cell).split("\n")]


def _with_narrow_heading(column: Column) -> Column:
    """A column of numbers or words with its heading on as many lines as these are narrow."""
    cells = [str(cell) for cell in [*column.cells, column.footer]]
    if not column.no_wrap and any(" " in cell for cell in cells):
        return column
    widest = max(map(cell_len, cells), default=1)
    narrow = _unbroken(column)
    narrow.header = "\n".join(textwrap.wrap(str(column.header), max(widest, 1), break_long_words=False))
    return narrow


def _unbroken(column: Column) -> Column:
    whole = copy.copy(column)
    whole.no_wrap = True
    return whole
