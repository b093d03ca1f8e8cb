"""The verb."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import webbrowser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sift_onnx.cli import main


@pytest.fixture
def folder(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path in (*results.glob("*.json"), results / "wide.onnx", results / "net.onnx"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def headings(page: Path) -> list[str]:
    return re.findall(r"<h2[^>]*>([^<]*)</h2>", page.read_text(encoding="utf-8"))


def test_a_full_set_has_every_section(results: Path) -> None:
    page = results / "report.html"
    assert headings(page) == [
        "Results", "Transform", "Masks", "Training", "Accuracy against FLOPs", "Latency", "Profile", "Simulator",
        "Layers", "Checks",
    ]  # fmt: skip
    text = page.read_text(encoding="utf-8")
    for part in ("Iso-FLOP budget", "Churn", "dense, best for their cost", "Simulated latency", "Roofline"):
        assert part in text
    assert "<script" not in text
    assert not re.search(r'(src|href)="(?!data:|#)', text)
    written = json.loads((results / "page.json").read_text())
    assert written["bytes"] == page.stat().st_size < 3_000_000
    assert {entry["verb"] for entry in written["results"]} >= {"transform", "train", "simulate", "benchmark"}


@pytest.mark.parametrize("name", ["transform", "inspect", "check", "train", "benchmark", "profile", "simulate"])
def test_any_single_result_makes_a_page(folder: Path, name: str) -> None:
    result = report(f"{name}.json", "--html", "one.html")
    assert result.exit_code == 0, result.output
    assert "one.html: 1 result, " in result.stdout
    assert len(headings(folder / "one.html")) == 2


def test_results_of_several_models_have_headings_of_their_own(folder: Path) -> None:
    assert report("transform.json", "prune.json", "--html", "two.html").exit_code == 0
    text = (folder / "two.html").read_text(encoding="utf-8")
    assert re.findall(r"<h3>([^<]*)</h3>", text) == ["net.onnx \u2192 wide.onnx", "net.onnx \u2192 pruned.onnx"]


def test_two_results_of_one_model_are_told_apart(folder: Path) -> None:
    shutil.copy("check.json", "again.json")
    assert report("check.json", "again.json", "--html", "two.html").exit_code == 0
    text = (folder / "two.html").read_text(encoding="utf-8")
    assert re.findall(r"<h3>([^<]*)</h3>", text) == ["wide.onnx (check.json)", "wide.onnx (again.json)"]


def test_masks_of_chosen_layers(folder: Path) -> None:
    assert report("transform.json", "--model", "wide.onnx", "--layer", "body*", "--html", "m.html").exit_code == 0
    text = (folder / "m.html").read_text(encoding="utf-8")
    assert "<strong>body.weight</strong>" in text
    assert "data:image/png" in text


def test_names_of_layers_are_no_markup(folder: Path) -> None:
    data = (folder / "transform.json").read_text().replace("body.weight", "<script>alert(1)</script>\\ud800 $x")
    (folder / "transform.json").write_text(data)
    assert report("transform.json", "--html", "h.html").exit_code == 0
    text = (folder / "h.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\ud800 $x" in text


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--html", "o.html"], 2, "Missing argument 'RUN.json...'"),
        (["check.json"], 2, "Missing option '--html'"),
        (["gone.json", "--html", "o.html"], 2, "cannot read 'gone.json': No such file"),
        (["net.onnx", "--html", "o.html"], 2, "net.onnx is not JSON"),
        (["check.json", "--html", "gone/o.html"], 2, "does not exist"),
        (["check.json", "--html", "net.onnx"], 2, "--force"),
        (["check.json", "--html", "check.json"], 2, "name the same file"),
        (["check.json", "--html", "o.html", "--layer", "*"], 2, "name the model with --model FILE"),
        (["check.json", "--html", "o.html", "--model", "net.onnx"], 2, "net.onnx has no masks to show"),
        (["check.json", "--html", "o.html", "--model", "wide.onnx", "--layer", "no*"], 2, "there are body.weight"),
    ],
)
def test_mistakes_are_one_line(folder: Path, arguments: list[str], code: int, message: str) -> None:
    result = report(*arguments)
    assert result.exit_code == code
    assert message in result.output
    assert "Traceback" not in result.output
    assert not (folder / "o.html").exists()


def test_without_matplotlib_the_way_out_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else find(name, *a))
    for arguments in (["report", "check.json"], ["simulate", "net.onnx"]):
        result = CliRunner().invoke(main, [*arguments, "--html", "o.html"])
        assert result.exit_code == 4
        assert "pip install 'sift-onnx[report]'" in result.output
    assert not (folder / "o.html").exists()


def test_open_shows_the_page_where_there_is_a_display(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)) or True)
    for variable in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    result = report("check.json", "--html", "o.html", "--open")
    assert result.exit_code == 0
    assert "no display" in result.stderr
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    assert report("check.json", "--html", "o.html", "--open", "--force").exit_code == 0
    assert opened == [(folder / "o.html").as_uri()]
