"""Tables on narrow terminals."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from sift_onnx.reports.fitting_table import FittingTable, least_width, width_beyond_terminals

NAMES = ["layer1.0.conv1.weight", "fc (last)"]
NUMBERS = ["1,234,567", "98.18 M"]


def table(**settings: Any) -> FittingTable:
    made = FittingTable(**settings)
    made.add_column("weight")
    made.add_column("kind")
    made.add_column("MACs of non-zeros", justify="right")
    made.add_column("status")
    for name, number in zip(NAMES, NUMBERS, strict=True):
        made.add_row(name, "conv", number, "dense: first layer")
    return made


def shown(made: FittingTable, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(made)
    assert all(len(line) <= width for line in out.getvalue().splitlines())
    return out.getvalue()


def test_a_table_that_fits_is_left_as_it_is() -> None:
    text = shown(table(spare=("kind",)), 120)
    assert "MACs of non-zeros" in text
    assert "kind" in text
    assert "no room" not in text


def test_headings_are_broken_first_then_columns_left_out_and_names_stay_whole() -> None:
    made = table(spare=("kind", "status"))
    broken = shown(made, 58)
    assert "MACs of non-zeros" not in broken
    assert "kind" in broken
    without = shown(made, 48)
    assert "conv " not in without
    assert "no room for kind" in without
    for text in (broken, without):
        assert all(cell in text for cell in (*NAMES, *NUMBERS))


@pytest.mark.parametrize("width", [30, 24])
def test_numbers_stay_whole_where_names_cannot(width: int) -> None:
    text = shown(table(spare=("kind", "status")), width)
    assert all(number in text for number in NUMBERS)
    assert NAMES[0] not in text


def test_it_can_be_shown_again_on_a_wider_terminal() -> None:
    made = table(spare=("kind", "status"))
    wide = shown(made, 120)
    shown(made, 30)
    assert shown(made, 120) == wide


def test_least_width_is_that_of_whole_numbers_and_words() -> None:
    natural = len(shown(table(), 1000).splitlines()[0])
    assert least_width(Console(width=10), table()) == natural - len("dense: first layer") + len("status")


@pytest.mark.parametrize("width", range(60, 76))
def test_every_word_is_whole_at_every_width_that_is_wide_enough(width: int) -> None:
    words = " ".join(cell.strip() for line in shown(table(), width).splitlines() for cell in line.split("│")).split()
    assert {*NAMES[0].split(), *NUMBERS[0].split(), "dense:", "first", "layer", "conv"} <= {*words}


@pytest.mark.parametrize(("length", "width"), [(10, 140), (160, 168), (500, 200)])
def test_in_a_file_a_row_is_a_line_unless_a_sentence_is_very_long(length: int, width: int) -> None:
    long = FittingTable()
    long.add_column("a")
    long.add_column("why")
    long.add_row("x", "a " * (length // 2 - 1) + "yz")
    assert width_beyond_terminals(Console(width=80), long) == width
