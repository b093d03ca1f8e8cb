"""Names of strangers on the terminal: shown as they are, and obeyed never."""

from __future__ import annotations

import io

import pytest
from rich.table import Table

from sift_onnx.reports.plain_console import PlainConsole


@pytest.mark.parametrize("name", ["[/b]", "[red]w[/red]", "block:key:w", "%s", "[link=http://x]"])
def test_names_are_no_markup(name):
    assert shown(name) == name


def test_control_characters_are_spelled_out():
    assert shown("a\x1b[31mb\x00\u202e\r") == "a\\x1b[31mb\\x00\\u202e\\r"


def shown(name):
    """What is in the cell of a table, and in a line."""
    out = io.StringIO()
    table = Table(show_header=False, box=None, padding=0)
    table.add_row(name)
    console = PlainConsole(file=out, width=80)
    console.print(table)
    console.print(name)
    cell, line = (text.rstrip(" ") for text in out.getvalue().splitlines())
    assert cell == line
    return line
