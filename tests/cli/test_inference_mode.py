"""What the verbs make and say of models that were exported for training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from nets import Net

from sift_onnx.cli import main


def run(*arguments: Any) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """A network in training mode."""
    net = Net(17)
    x = net.op("Relu", net.conv(net.input("x", 2, 3, 6, 6, declared=["n", 3, 6, 6]), 3, 16, 3, name="stem"))
    stored = [net.constant(np.full(16, value, np.float32), name) for name, value in (("one", 1), ("zero", 0))]
    parameters = [*stored, stored[1], stored[0]]
    conv = net.conv(x, 16, 16, 3, name="a")
    y = net.op("BatchNormalization", conv, *parameters, name="bn", outputs=3, training_mode=1)
    dropped = net.op("Dropout", y[0], net.constant(np.float32(0.5)), net.constant(np.array(True)), name="drop")
    x = net.op("Add", x, net.conv(net.op("Relu", dropped), 16, 16, 3, name="b"))
    net.output(net.conv(net.op("Relu", x), 16, 4, name="head"), "n", 4, 6, 6)  # type: ignore[arg-type]
    onnx.save(net.model(), tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


NOTE = "2 nodes were exported in training mode, and put into inference mode: 'bn', 'drop'"
VERBS = {
    "transform": ["--wide", "0.75", "--budget", "layer"],
    "transform-nothing": ["--parallel", "0"],
    "prune": ["--sparsity", "0.5"],
    "densify": [],
}


@pytest.mark.parametrize("verb", VERBS)
def test_what_a_verb_writes_is_in_inference_mode_and_it_says_so(verb: str, export: Path, tmp_path: Path) -> None:
    arguments = [export, tmp_path / "out.onnx", *VERBS[verb], "--json", tmp_path / "out.json"]
    result = run(verb.partition("-")[0], *arguments)
    assert result.exit_code == 0, result.output
    assert NOTE in result.stderr
    assert json.loads((tmp_path / "out.json").read_text())["inference_mode"] == ["bn", "drop"]
    nodes = onnx.load(tmp_path / "out.onnx").graph.node
    assert all(len(node.output) == 1 for node in nodes)
    assert all(len(node.input) == 2 for node in nodes if node.op_type == "Dropout")
    assert run("check", tmp_path / "out.onnx").exit_code == 0


def test_convert_keeps_the_mode_and_warns_of_it(export: Path, tmp_path: Path) -> None:
    result = run("convert", export, tmp_path / "out.onnx", "--storage", "dense", "--json", tmp_path / "out.json")
    assert result.exit_code == 0
    assert "Warning: " in result.stderr
    assert "by the batch or by chance: 'bn' (BatchNormalization), 'drop' (Dropout); the pass" in result.stderr
    assert len(json.loads((tmp_path / "out.json").read_text())["warnings"]) == 1
    recipe = tmp_path / "mode.yaml"
    recipe.write_text("version: 1\npasses: [inference-mode]\n")
    assert run("transform", tmp_path / "out.onnx", tmp_path / "good.onnx", "--recipe", recipe).exit_code == 0
    again = run("convert", tmp_path / "good.onnx", tmp_path / "again.onnx", "--storage", "dense")
    assert not again.stderr


def test_check_names_what_is_in_training_mode(export: Path) -> None:
    result = run("check", export, "--json", "-")
    assert result.exit_code == 1
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert not checks["inference-mode"]["ok"]
    assert "'bn' (BatchNormalization), 'drop' (Dropout)" in checks["inference-mode"]["detail"]
    assert not checks["alone-and-in-batch"]["ok"]
