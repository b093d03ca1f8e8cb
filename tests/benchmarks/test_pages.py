"""Pages of benchmarks are what their scripts make of the committed results."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch, request):
    """Modules of the folders of `benchmarks` have the names of others there: each test imports its own."""

    def find(folder: str, name: str):
        monkeypatch.syspath_prepend(str(BENCHMARKS / folder))
        for other in ("page", "tables", "pages", "verdicts"):
            monkeypatch.delitem(sys.modules, other, raising=False)
        return importlib.import_module(name)

    return find


@pytest.fixture
def pages(module):
    return module("", "pages")


def test_the_page_of_training_is_made_of_its_results(module):
    page = module("training", "page")
    names = ("digits.json", "growth.json", "sparse_step.json")
    digits, growth, steps = (page.pages.read(page.FOLDER / name) for name in names)
    assert (page.FOLDER / "README.md").read_text(encoding="utf-8") == page.page(digits, growth, steps)
    assert page.chart_key(digits) in (page.FOLDER / "chart.svg").read_text(encoding="utf-8")


def test_the_page_of_the_simulator_is_made_of_its_results(module):
    page = module("simulator", "page")
    found = page.pages.read(page.FOLDER / "every_model.json")
    assert (page.FOLDER / "README.md").read_text(encoding="utf-8") == page.page(found)
    assert page.chart_key(found) in (page.FOLDER / "chart.svg").read_text(encoding="utf-8")


def test_the_page_of_growth_is_made_of_its_results(module):
    page = module("growth", "page")
    found = {name: page.pages.read(page.FOLDER / f"{name}.json") for name in page.RESULTS}
    assert (page.FOLDER / "README.md").read_text(encoding="utf-8") == page.page(found)
    assert page.chart_key(found) in (page.FOLDER / "chart.svg").read_text(encoding="utf-8")


def test_the_page_of_quantized_networks_is_made_of_its_results(module):
    page = module("quantized", "page")
    networks = [page.pages.read(path) for path in sorted(page.NETWORKS.glob("*.json"))]
    assert networks
    assert page.PAGE.read_text(encoding="utf-8") == page.page(networks, page.pages.read(page.TRAINED))


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        ({}, "grown"),
        ({"share": 0.3}, "in part"),
        ({"error": 2e-4}, "wrong"),
        ({"error": 2e-4, "error64": 1e-12}, "grown"),
        ({"error": float("inf")}, "wrong"),
        ({"error": 1e-6, "moves": 1e-3}, "wrong"),
        ({"error": 0.0, "moves": 0.0}, "wrong"),
        ({"macs_after": 101}, "wrong"),
        ({"defect": "KeyError"}, "wrong"),
        ({"refused": "nothing to widen"}, "refused"),
    ],
)
def test_a_model_has_grown_if_it_computes_what_it_did_at_the_same_cost(module, row, verdict):
    grown = {"macs": 100, "macs_after": 100, "error": 1e-7, "moves": 0.5, "share": 1.0}
    assert module("growth", "verdicts").verdict(grown | row) == verdict


@pytest.mark.parametrize(("folder", "results"), [("training", "digits.json"), ("simulator", "every_model.json")])
def test_charts_are_drawn_with_their_key(module, tmp_path, folder, results):
    pytest.importorskip("matplotlib")
    page = module(folder, "page")
    found = page.pages.read(page.FOLDER / results)
    page.draw(found, tmp_path / "chart.svg")
    assert page.chart_key(found) in (tmp_path / "chart.svg").read_text(encoding="utf-8")


def test_results_say_where_when_and_how_they_were_measured(pages, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmarks/x.py", "--only", "a b"])
    rows = [{"model": "m", "cycles": 3}, {"model": "n", "cycles": 4}]
    pages.write(tmp_path / "x.json", rows)
    found = pages.read(tmp_path / "x.json")
    assert found["rows"] == rows
    assert found["command"] == "python benchmarks/x.py --only 'a b'"
    assert pages.measured_on(found) == f"Measured on {found['processor']}; {found['date']}, commit {found['commit']}."
    assert (tmp_path / "x.json").read_text().count("\n") == 11


def test_columns_of_figures_are_aligned_to_the_right(pages):
    table = pages.table(["a", "b", "c"], [["x", "1.5", ""], ["y", "2 ± 1", "3"]])
    assert table == "| a | b | c |\n| --- | ---: | ---: |\n| x | 1.5 |  |\n| y | 2 ± 1 | 3 |\n"


def test_figures_of_the_readme_are_those_of_the_results(module, monkeypatch):
    monkeypatch.delitem(sys.modules, "results", raising=False)
    front_page = module("", "front_page")
    readme = (BENCHMARKS.parent / "README.md").read_text(encoding="utf-8")
    digits, processor, rows = front_page.read_results()
    assert front_page.readme_table(digits, processor, rows) in readme
    assert front_page.readme_cost(rows) in readme
    keys = {"accuracy": front_page.accuracy_key(digits), "latency": front_page.latency_key(processor, rows)}
    for name, key in keys.items():
        assert key in (front_page.IMAGES / f"{name}.svg").read_text(encoding="utf-8")


def test_rows_that_are_measured_again_take_their_places(module, tmp_path):
    tables = module("training", "tables")
    pages, path, keys = tables.pages, tmp_path / "steps.json", ("case", "against")
    rows = [
        {"case": case, "against": "masked", "ratio": 0.5, "ours": 1.0, "theirs": 2.0, "unit": "ms", "at_most": 0.4}
        for case in ("a step", "a peak")
    ]
    pages.write_over(path, rows, None, keys)
    pages.write_over(path, [rows[1] | {"ratio": 0.25}, rows[1] | {"case": "a third"}], pages.read(path), keys)
    found = pages.read(path)["rows"]
    assert [(row["case"], row["ratio"]) for row in found] == [("a step", 0.5), ("a peak", 0.25), ("a third", 0.5)]
    assert [("commit" in row) for row in found] == [False, True, True]
    table = tables.steps_table(found)
    assert "| a step | masked | 0.500 | 0.4 (missed) |" in table
    assert f"| a peak (commit {found[1]['commit']}) | masked | 0.250 | 0.4 |" in table


def test_a_commit_is_dirty_if_code_has_changed_but_not_by_results(pages, tmp_path):
    def git(*arguments: str) -> None:
        names = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True)

    results, code = tmp_path / "benchmarks" / "a" / "b.json", tmp_path / "a.py"
    results.parent.mkdir(parents=True)
    for path in (results, code):
        path.write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "all")
    clean = pages.commit(tmp_path)

    results.write_text("2")
    assert pages.commit(tmp_path) == clean
    code.write_text("2")
    assert pages.commit(tmp_path) == f"{clean}-dirty"
