"""`-q` says nothing, and `--full` lists what is summarised otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result
from nets import Net

from sift_onnx.cli import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 layers, of which 48 repeat."""
    net = Net()
    h = net.op("Relu", net.dense(net.tokens(8, 4), 8, 16, name="in"))
    for i in range(48):
        h = net.op("Relu", net.dense(h, 16, 16, name=f"h.{i}.up"))
    net.tokens_end(h, 16)
    path = tmp_path_factory.mktemp("deep") / "deep.onnx"
    onnx.save(net.model(), path)
    return path


def sift(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result


VERBS = [
    ("inspect",),
    ("simulate",),
    ("transform", "--wide", "0.5", "--dry-run"),
    ("prune", "--sparsity", "0.5", "--dry-run"),
]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_repeated_layers_are_one_row_unless_all_are_asked_for(model: Path, verb: tuple[str, ...]) -> None:
    outputs = ["out.onnx"] if "--dry-run" in verb else []
    short, full = (sift(verb[0], model, *outputs, *verb[1:], *extra).stdout for extra in ((), ("--full",)))
    assert "h.*.up.weight" in short
    assert "h.17.up.weight" not in short
    assert "--full lists all" in short
    assert "h.17.up.weight" in full
    assert "--full lists all" not in full


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_quiet_is_silent_and_json_is_written(model: Path, tmp_path: Path, verb: tuple[str, ...]) -> None:
    outputs = ["out.onnx"] if "--dry-run" in verb else []
    result = sift(verb[0], model, *outputs, *verb[1:], "-q", "--json", tmp_path / "r.json")
    assert (result.stdout, result.stderr) == ("", "")
    assert len(json.loads((tmp_path / "r.json").read_text())["layers"]) >= 50
