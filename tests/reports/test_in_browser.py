"""Pages as a browser shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser import Page

# Results are made where there is a browser to look at them.
pytestmark = pytest.mark.usefixtures("browser")

PAGES = ("report.html", "simulation.html")
SCREENS = [(width, dark) for width in (380, 1440) for dark in (False, True)]

_FIGURES = """
[...document.querySelectorAll('figure')].map(figure => {
  const shown = [...figure.querySelectorAll('svg')].filter(svg => svg.getBoundingClientRect().width > 0);
  const frame = shown[0].getBoundingClientRect();
  const drawn = [...shown[0].querySelectorAll('path, use, image, text')].filter(node => {
    const box = node.getBoundingClientRect();
    return box.width > 0 || box.height > 0;
  });
  const outside = [...shown[0].querySelectorAll('text')].filter(node => {
    const box = node.getBoundingClientRect();
    return box.left < frame.left - 3 || box.right > frame.right + 3 || box.top < frame.top - 3
      || box.bottom > frame.bottom + 3;
  });
  return {title: figure.querySelector('strong').textContent, shown: shown.length, width: frame.width,
          height: frame.height, drawn: drawn.length, outside: outside.map(node => node.textContent),
          label: shown[0].getAttribute('aria-label'), rows: figure.querySelectorAll('tbody tr').length};
})
"""


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_every_chart_is_drawn_and_nothing_overflows(
    results: Path, page: Page, name: str, width: int, dark: bool
) -> None:
    page.open(results / name, width, dark=dark)

    assert page.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    figures: list[dict[str, Any]] = page.evaluate(_FIGURES)
    assert len(figures) >= (16 if name == "report.html" else 4)
    for figure in figures:
        assert figure["shown"] == 1, figure
        assert figure["width"] > 250, figure
        assert figure["height"] > 80, figure
        assert figure["drawn"] > 10, figure
        assert figure["outside"] == [], figure
        assert figure["title"] in figure["label"]
        assert figure["rows"] > 0, figure


def test_colours_follow_the_theme(results: Path, page: Page) -> None:
    seen = []
    for dark in (False, True):
        page.open(results / "report.html", 1440, dark=dark)
        nodes = ("document.body", "document.querySelector('svg.wide text')", "document.querySelector('svg.wide path')")
        seen.append(
            [page.evaluate(f"getComputedStyle({node}).color + getComputedStyle({node}).fill") for node in nodes]
        )
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] != seen[1][1]


def test_tables_behind_charts_are_reached_by_keyboard(results: Path, page: Page) -> None:
    page.open(results / "report.html", 1440, dark=False)
    page.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#content"
    for _ in range(60):
        page.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    assert page.evaluate("document.activeElement.parentElement.open") is False
    page.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open") is True
    page.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "region"


def test_every_link_leads_somewhere(results: Path, page: Page) -> None:
    page.open(results / "report.html", 1440, dark=False)
    names = page.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    assert len(names) > 8
    assert page.evaluate("[...document.querySelectorAll('a')].every(a => document.querySelector(a.hash) !== null)")
    assert page.evaluate("new Set([...document.querySelectorAll('[id]')].map(n => n.id)).size") == page.evaluate(
        "document.querySelectorAll('[id]').length"
    )
