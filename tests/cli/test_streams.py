"""What becomes of a verb whose reader leaves, whose disk is full, or whom somebody interrupts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from builders import linear, random_weight
from click.testing import CliRunner

from sift_onnx.cli import main

SIFT = [sys.executable, "-m", "sift_onnx"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    onnx.save(linear({"w": random_weight(4, 4)}), tmp_path / "m.onnx")
    return str(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    "words", [["models", "list"], ["models", "list", "--json", "-"], ["--help"], ["inspect", "--help"]]
)
def test_a_reader_that_leaves_is_no_failed_check(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*SIFT, *words], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_error_is_one_even_if_nobody_reads_it(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*SIFT, "inspect", str(tmp_path / "gone.onnx")], stdout=writer, stderr=writer, check=False)
    os.close(writer)
    assert done.returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("json_option", [[], ["--json", "-"]])
def test_a_full_disk_is_one_line(model: str, json_option: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*SIFT, "inspect", model, *json_option], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "Error: cannot write to stdout: No space left on device\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["inspect", "--help"], ["models", "list"]])
def test_a_full_disk_is_one_line_for_what_needs_no_model(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*SIFT, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "Error: cannot write to stdout: No space left on device\n")


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell closes the stream")
def test_a_stdout_that_is_closed_is_no_error(model: str) -> None:
    command = f"exec '{sys.executable}' -m sift_onnx inspect '{model}' >&-"
    done = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interruption_is_one_line(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sift_onnx.model.Model.load", interrupted)
    result = CliRunner().invoke(main, ["inspect", model])
    assert (result.exit_code, result.stdout, result.stderr.strip()) == (130, "", "Interrupted.")


def test_without_a_terminal_a_table_is_as_wide_as_it_needs(tmp_path: Path) -> None:
    name = "encoder." * 20 + "weight"
    onnx.save(linear({name: random_weight(4, 4)}), tmp_path / "m.onnx")
    shown = CliRunner(env={"COLUMNS": "40"}).invoke(main, ["inspect", str(tmp_path / "m.onnx")]).stdout
    assert name in shown
    assert "search space" in shown


def test_progress_is_for_terminals(model: str) -> None:
    done = CliRunner().invoke(main, ["check", model, "--json", "-"])
    assert json.loads(done.stdout)["ok"]
    assert done.stderr == ""
