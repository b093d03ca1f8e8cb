"""The page about the CPU runtime's speed is what its script makes of the committed results."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "cpu_runtime"


@pytest.fixture(scope="module")
def page():
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("page")
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def results(page: ModuleType):
    return sys.modules["results"]


def test_the_page_is_made_of_the_results(page):
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == page.page(page.processors())


def test_the_chart_shows_these_results(page):
    assert page.chart_key(page.processors()[0]) in (FOLDER / "chart.svg").read_text(encoding="utf-8")


def test_a_chart_is_drawn_with_its_key(page, tmp_path):
    pytest.importorskip("matplotlib")
    current = page.processors()[0]
    page.draw(current, tmp_path / "chart.svg")

    text = (tmp_path / "chart.svg").read_text(encoding="utf-8")
    assert page.chart_key(current) in text
    assert all(model in text for model, _, _ in page.cases(current))


def test_results_survive_a_file(page, results, tmp_path):
    for name in ("zen4", "zen5", "xeon"):
        read = results.Processor.read(FOLDER / "results" / f"{name}.json")
        read.write(tmp_path / "copy.json")
        assert (tmp_path / "copy.json").read_bytes() == (FOLDER / "results" / f"{name}.json").read_bytes()


def test_figures_from_before_generated_code_are_marked_and_come_last(page):
    found = page.processors()

    assert [bool(processor.stale) for processor in found] == sorted(bool(processor.stale) for processor in found)
    for processor in found:
        before = all(run.date <= "2026-11-23" for run in processor.runs)
        assert bool(processor.stale) == before
    text = page.page(found)
    assert text.count("**These figures are stale.**") == sum(bool(processor.stale) for processor in found)


def test_a_run_is_appended_and_its_rows_take_the_place_of_older_ones(page, results, tmp_path):
    row = results.Row("chain 90 %", results.DEEPSPARSE, 0.5, 1, ours=1.0, theirs=2.0, at_most=0.75)
    run = results.Run("2026-11-25", "abc", "run.py", 2, "wall", "1.32", [row])
    here = results.Processor("a processor", "avx2", "2 cores.")
    results.add_run(tmp_path / "new.json", here, run)
    results.add_run(tmp_path / "new.json", here, replace(run, commit="def", rows=[replace(row, ratio=0.8)]))

    found = results.Processor.read(tmp_path / "new.json")
    assert [run.commit for run in found.runs] == ["abc", "def"]
    ((model, batch, rows),) = page.cases(found)
    assert (model, batch, rows[results.DEEPSPARSE].ratio) == ("chain 90 %", 1, 0.8)


@pytest.mark.parametrize(
    ("ratio", "bound", "verdict"),
    [
        (0.5, {"at_most": 0.5}, "met"),
        (0.501, {"at_most": 0.5}, "missed"),
        (0.5, {"at_least": 0.5}, "met"),
        (0.499, {"at_least": 0.5}, "missed"),
        (2.0, {}, ""),
    ],
)
def test_a_row_says_whether_its_bound_is_met(results, ratio, bound, verdict):
    assert results.Row("m", "other", ratio, **bound).verdict == verdict


def test_the_page_says_where_ours_is_slower(page, results):
    rows = [
        results.Row("m 50 %", results.SAME_FILE, ratio, batch, ours=1.0, theirs=1.0)
        for batch, ratio in ((1, 0.5), (2, 1.25), (4, 1.5))
    ]
    run = results.Run("2026-11-25", "abc", "run.py", 2, "wall", "1.32", rows)
    text = page.page([results.Processor("a processor", "avx2", "2 cores.", [run])])

    assert "Ours is slower than onnxruntime, same file in 2 of 3 cases (1.25 to 1.50 times its time)." in text
