"""The table of docs/hosts.md and the tests are about the same cells, and about all passes."""

from __future__ import annotations

from pathlib import Path

from hosts.cases import HOSTS, PASSES, TOOLS

from sift_onnx.passes.base import pass_names

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hosts.md"


def table() -> dict[tuple[str, str], str]:
    """Cells that are not empty, by pass and host."""
    lines = iter(PAGE.read_text(encoding="utf-8").splitlines())
    head = next(line for line in lines if line.startswith("| pass |"))
    next(lines)
    hosts = [cell.strip() for cell in head.strip("|").split("|")][1:]
    cells: dict[tuple[str, str], str] = {}
    for line in lines:
        if not line.startswith("|"):
            break
        name, *row = (cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|"))
        cells.update({(name, host): cell for host, cell in zip(hosts, row, strict=True) if cell})
    return cells


def test_the_table_says_what_is_tested() -> None:
    tested = {(name, host): "yes" for host, names in HOSTS.items() for name in names}
    tested |= {(name, tool): ", ".join(orders) for tool, orders in TOOLS.items() for name in PASSES}
    assert table() == tested


def test_every_pass_of_this_package_has_a_row() -> None:
    assert set(PASSES) == set(pass_names())
