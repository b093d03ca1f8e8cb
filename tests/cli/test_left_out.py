"""Layers that sizes are not known of, as the verbs name them."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from nets import Net

from sift_onnx.cli import main


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """``stem``, ``before``, ``free``, an operator that nobody knows, and ``mid`` and ``head`` behind it."""
    monkeypatch.chdir(tmp_path)
    net = Net()
    h = net.dense(net.op("Relu", net.tokens(12)), 12, 8, name="free")
    h = net.op("Mystery", h, name="strange", domain="custom.example")
    net.output(net.dense(net.op("Relu", net.dense(h, 8, 12, name="mid")), 12, 2, name="head"), 1, 5, 2)
    onnx.save(net.model(), "in.onnx")
    return "in.onnx"


def called(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    capfd.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(args=list(words))
    out, err = capfd.readouterr()
    assert stop.value.code == 0
    return out, err


VERBS = [
    ("inspect", "in.onnx"),
    ("transform", "in.onnx", "out.onnx", "--wide", "0.5"),
    ("transform", "in.onnx", "out.onnx", "--parallel", "0.5"),
    ("transform", "in.onnx", "out.onnx", "--factorized", "0.5"),
    ("transform", "in.onnx", "out.onnx", "--doped", "0.5"),
    ("prune", "in.onnx", "out.onnx", "--sparsity", "0.5"),
]


@pytest.mark.parametrize("words", VERBS)
def test_what_is_left_out_is_a_table_and_the_way_out_a_warning(
    model: str, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    out, err = called(capfd, *words)
    table = out[out.index("Layers left out") :]
    assert all(word in table for word in ("mid.weight", "head.weight", "8x12", "custom.example::Mystery"))
    assert "free.weight" not in table
    (line,) = err.splitlines()
    assert line.startswith("Warning: layers are left out, and stay as they are: 'mid.weight' (MatMul 'mid')")
    assert "register an axis rule for custom.example::Mystery" in line


@pytest.mark.parametrize("words", VERBS)
def test_scripts_find_it_in_the_document(model: str, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    document = json.loads(called(capfd, *words, "--json", "-", "-q")[0])
    assert [layer["name"] for layer in document["left_out"]] == ["mid.weight", "head.weight"]
    assert document["left_out"][0]["stopped_at"]["op"] == "Mystery"
    assert [layer["name"] for layer in document["layers"]] == ["stem.weight", "before.weight", "free.weight"]


def test_a_recipe_says_it_once(model: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("two.yaml").write_text("version: 1\npasses:\n  - wide: {sparsity: 0.5}\n  - prune: {sparsity: 0.8}\n")
    out, err = called(capfd, "transform", "in.onnx", "out.onnx", "--recipe", "two.yaml")
    assert out.count("Layers left out") == 1
    assert len(err.splitlines()) == 1


def test_a_model_that_stays_as_it_was_says_that_its_layers_are_left_out(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    net = Net()
    h = net.op("Mystery", net.input("x", 1, 8), name="strange", domain="custom.example")
    net.output(net.dense(h, 8, 2, name="head"), 1, 2)
    onnx.save(net.model(), "in.onnx")
    out, _ = called(capfd, "densify", "in.onnx", "out.onnx")
    assert out == "out.onnx is in.onnx as it was: its weight layers are left out.\n"


def test_the_page_has_the_warning(model: str, capfd: pytest.CaptureFixture[str]) -> None:
    called(capfd, "inspect", "in.onnx", "--json", "inspect.json")
    called(capfd, "transform", "in.onnx", "out.onnx", "--wide", "0.5", "--json", "transform.json")
    called(capfd, "report", "inspect.json", "transform.json", "--html", "page.html")
    page = Path("page.html").read_text(encoding="utf-8")
    assert page.count("layers are left out, and stay as they are") == 2
