"""Paths that a verb is given, in wrong ways: what is said, and that nothing is written."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import onnx
import pytest
from builders import convolutions
from click.testing import CliRunner

from sift_onnx.cli import main

DATA = ("--data", "data.npz", "--epochs", "1")
# Verbs from a model to a file: the words around the model's name and the output's.
WRITERS = {
    "transform": ("transform", "IN", "OUT", "--wide", "0.5"),
    "transform by recipe": ("transform", "IN", "OUT", "--recipe", "r.yaml"),
    "prune": ("prune", "IN", "OUT", "--sparsity", "0.5"),
    "densify": ("densify", "IN", "OUT"),
    "convert": ("convert", "IN", "OUT", "--storage", "dense"),
    "train": ("train", "IN", "OUT", *DATA),
    "inspect --save-recipe": ("inspect", "IN", "--save-recipe", "OUT"),
    "profile --trace": ("profile", "IN", "--trace", "OUT"),
    "simulate --trace": ("simulate", "IN", "--trace", "OUT"),
    "simulate --html": ("simulate", "IN", "--html", "OUT"),
    "report --html": ("report", "RUN", "--html", "OUT"),
    "report --html --model": ("report", "RUN", "--model", "IN", "--html", "OUT"),
}
NEEDS = {
    "train": "torch",
    "simulate --html": "matplotlib",
    "report --html": "matplotlib",
    "report --html --model": "matplotlib",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With ``in.onnx``, a result and a recipe in it."""
    monkeypatch.chdir(tmp_path)
    onnx.save(convolutions(), "in.onnx")
    assert CliRunner().invoke(main, ["inspect", "in.onnx", "--json", "run.json"]).exit_code == 0
    Path("r.yaml").write_text("version: 1\npasses:\n  - wide: {sparsity: 0.5}\n", encoding="utf-8")
    return tmp_path


def said(writer: str, **paths: str) -> str:
    """The one line on stderr of a call that was refused."""
    if writer == "inspect --save-recipe" and paths["OUT"] == "-":
        assert CliRunner().invoke(main, ["prune", "in.onnx", "pruned.onnx", "--sparsity", "0.5"]).exit_code == 0
        paths["IN"] = "pruned.onnx"
    if writer in NEEDS and importlib.util.find_spec(NEEDS[writer]) is None:
        pytest.skip(f"{NEEDS[writer]} is not installed")
    before = {p.name: p.read_bytes() for p in Path().iterdir() if p.is_file()}
    result = CliRunner().invoke(main, [paths.get(word, word) for word in WRITERS[writer]])
    assert result.exit_code == 2, result.stderr
    assert before == {p.name: p.read_bytes() for p in Path().iterdir() if p.is_file()}
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.parametrize("writer", WRITERS)
def test_a_dash_is_no_file_to_write(writer: str) -> None:
    line = said(writer, IN="in.onnx", RUN="run.json", OUT="-")
    assert line.startswith("Error: '-' is not a file name")
    assert "name a file" in line


def test_a_dash_is_no_file_to_export_to() -> None:
    result = CliRunner().invoke(main, ["models", "export", "resnet18", "-"])
    assert (result.exit_code, "'-' is not a file name" in result.stderr) == (2, True)


@pytest.mark.parametrize("option", ["--checkpoints", "--log", "--tensorboard"])
def test_a_dash_is_no_place_for_what_a_training_writes(option: str) -> None:
    result = CliRunner().invoke(main, ["train", "in.onnx", "out.onnx", *DATA, option, "-"])
    assert (result.exit_code, "'-' is not a file name" in result.stderr) == (2, True)
    assert not Path("-").exists()


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_missing_is_said_before_what_is_in_the_way(writer: str) -> None:
    Path("out").write_text("mine", encoding="utf-8")
    run = "run.json" if "--model" in writer else "missing.json"
    line = said(writer, IN="missing.onnx", RUN=run, OUT="out")
    assert "missing." in line
    assert "no such file" in line.lower()


@pytest.mark.parametrize("writer", [name for name in WRITERS if name != "report --html"])
def test_a_folder_is_no_model(writer: str, folder: Path) -> None:
    Path("out").write_text("mine", encoding="utf-8")
    (folder / "nets").mkdir()
    assert "nets is a folder" in said(writer, IN="nets", RUN="run.json", OUT="out")


@pytest.mark.parametrize(
    "words",
    [
        *[(verb, "") for verb in ("inspect", "check", "benchmark", "profile", "simulate")],
        ("check", "in.onnx", ""),
        ("benchmark", "in.onnx", "--baseline", ""),
        ("transform", "", "out.onnx", "--wide", "0.5"),
        ("transform", "in.onnx", "", "--wide", "0.5"),
        ("transform", "in.onnx", "out.onnx", "--recipe", ""),
        ("report", "", "--html", "page.html"),
        ("report", "run.json", "--html", ""),
        ("models", "export", "resnet18", ""),
        ("train", "in.onnx", "out.onnx", *DATA, "--resume", ""),
    ],
    ids=" ".join,
)
def test_a_name_that_is_empty_is_said_to_be(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, "the name is empty; name a file" in result.stderr) == (2, True)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
def test_a_device_without_an_end_is_not_read() -> None:
    result = CliRunner().invoke(main, ["inspect", "/dev/zero"])
    assert (result.exit_code, result.stderr) == (2, "Error: /dev/zero is a device; name a file\n")


def test_a_dash_is_no_model_but_stdin_has_a_name() -> None:
    result = CliRunner().invoke(main, ["inspect", "-"])
    assert result.exit_code == 2
    assert "-: no such file; models are not read from '-', but from /dev/stdin" in result.stderr


def test_a_file_is_no_folder_to_write_to() -> None:
    assert "in.onnx is not a folder" in said("convert", IN="in.onnx", OUT="in.onnx/out.onnx")


@pytest.mark.parametrize(
    "words",
    [
        ("transform", "in.onnx", "out.onnx", "--wide", "0.5", "--json", "out.onnx"),
        ("transform", "in.onnx", "out.onnx", "--wide", "0.5", "--json", "./in.onnx"),
        ("transform", "in.onnx", "out.onnx", "--recipe", "r.yaml", "--json", "r.yaml"),
        ("inspect", "in.onnx", "--json", "in.onnx"),
        ("inspect", "in.onnx", "--save-recipe", "x.yaml", "--json", "x.yaml"),
        ("check", "in.onnx", "other.onnx", "--json", "other.onnx"),
        ("benchmark", "in.onnx", "other.onnx", "--json", "other.onnx"),
        ("benchmark", "in.onnx", "--baseline", "other.onnx", "--json", "other.onnx"),
        ("profile", "in.onnx", "--trace", "in.onnx", "--force"),
        ("profile", "in.onnx", "--trace", "t.json", "--json", "t.json"),
        ("simulate", "in.onnx", "--trace", "t.json", "--html", "t.json"),
        ("report", "run.json", "--html", "page.html", "--json", "run.json"),
        ("report", "run.json", "--html", "run.json", "--force"),
        ("train", "in.onnx", "out.onnx", *DATA, "--log", "out.onnx"),
        ("models", "export", "resnet18", "out.onnx", "--json", "out.onnx"),
    ],
    ids=" ".join,
)
def test_no_file_is_written_over_what_else_the_call_names(words: tuple[str, ...]) -> None:
    Path("other.onnx").write_bytes(Path("in.onnx").read_bytes())
    before = {p.name: p.read_bytes() for p in Path().iterdir()}
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert re.fullmatch(r"Error: .+ and .+ name the same file, '.+'; name two\n", result.stderr)
    assert before == {p.name: p.read_bytes() for p in Path().iterdir()}


def test_a_model_may_take_its_own_place() -> None:
    words = ["prune", "in.onnx", "in.onnx", "--sparsity", "0.5", "--force", "--json", "-"]
    assert CliRunner().invoke(main, words).exit_code == 0


@pytest.mark.parametrize("words", [("check", "NAME"), ("benchmark", "NAME", "--backend", "onnxruntime")], ids=" ".join)
def test_a_name_that_is_not_utf8_is_read_but_not_by_onnxruntime(words: tuple[str, ...]) -> None:
    name = "caf\udce9.onnx"
    try:
        Path(name).write_bytes(Path("in.onnx").read_bytes())
    except OSError:
        pytest.skip("this file system has UTF-8 names only")
    assert CliRunner().invoke(main, ["inspect", name]).exit_code == 0
    result = CliRunner().invoke(main, [name if word == "NAME" else word for word in words])
    assert result.exit_code == 2
    assert result.stderr.startswith(r"Error: the name of caf\udce9.onnx is not UTF-8, and onnxruntime cannot open it")
