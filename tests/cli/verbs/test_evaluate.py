"""The verb ``evaluate`` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from evaluation.test_evaluate import folder as folder

from sift_onnx.cli import main


def call(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["evaluate", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


def test_a_table_of_models_beside_a_baseline(folder: Path) -> None:
    command = (folder / "worse.onnx", "--data", folder / "d.npz", "--baseline", folder / "net.onnx", "--threads", 1)
    code, out, _ = call(*command)
    assert code == 0
    assert "37 examples of" in out
    assert "(baseline)" in out
    assert "points lower" in out
    code, out, _ = call(*command, "--json", "-")
    document = json.loads(out)
    assert (document["schema"], document["examples"]) == (1, 37)
    assert document["runs"][1]["baseline"]
    assert {entry["metric"] for entry in document["differences"]} == {"top1", "top5", "loss"}


@pytest.mark.parametrize(("most", "code"), [("1", 0), ("0.01", 1)])
def test_the_gate(folder: Path, most: str, code: int) -> None:
    command = (folder / "worse.onnx", "--data", folder / "d.npz", "--baseline", folder / "net.onnx")
    found, _, err = call(*command, "--max-drop", most, "--metric", "top1", "--backend", "onnxruntime")
    assert found == code
    assert ("and 0.01 is allowed" in err) == (code == 1)


def test_mistakes_are_named_as_options(folder: Path) -> None:
    code, _, err = call(folder / "net.onnx", "--data", folder / "d.npz", "--max-drop", 1)
    assert (code, err.strip()) == (2, "Error: --max-drop needs --baseline: worse than what?")
    code, _, err = call(folder / "four.onnx", "--data", folder / "d.npz", "--batch", 8)
    assert (code, err.strip()) == (2, "Error: the model fixes a batch of 4; drop --batch 8")
    code, _, err = call(folder / "net.onnx", "--data", "nothing")
    assert code == 2
    assert "hf:NAME" in err
